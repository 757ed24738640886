"""Hypothesis strategies for messages of the planner, whose fields depend on each other."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from schemas.devices import Cluster, Device, LinkRate
from schemas.layers import Dtype, LayerClass, LayerProfile
from schemas.message import Message
from schemas.plans import Alternative, DevicePlan, Engine, Plan, PlanReason, PlanReply, PlanRequest, Strategy

NAME = st.text(min_size=1, max_size=12)
JOB = st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?\Z")
COUNT = st.integers(0, (1 << 62) - 1)
TIME = st.floats(0, 1e9, exclude_min=True)


@st.composite
def _classes(draw: st.DrawFn, count: int) -> LayerClass:
    length = draw(st.integers(1, 3))
    times = st.lists(TIME, min_size=length, max_size=length).map(tuple)
    return LayerClass(
        name=draw(NAME),
        count=count,
        parameters=draw(COUNT),
        flat_bytes=draw(COUNT),
        forward_us=draw(times),
        forward_us_p90=draw(st.just(()) | times),
        backward_us=draw(times),
        saved_bytes=draw(st.lists(COUNT, min_size=length, max_size=length).map(tuple)),
        boundary_bytes=draw(COUNT),
    )


@st.composite
def _profiles(draw: st.DrawFn) -> LayerProfile:
    order = [*draw(st.lists(st.integers(0, 1), max_size=4)), 0, 1]
    return LayerProfile(
        profile=draw(NAME),
        model=draw(NAME),
        task=draw(NAME),
        kind=draw(NAME),
        dtype=draw(st.sampled_from(Dtype)),
        refused=draw(st.text(max_size=12)),
        scalar_parameters=draw(st.booleans()),
        classes=tuple(draw(_classes(order.count(index))) for index in (0, 1)),
        order=tuple(order),
        measured_ns=draw(COUNT),
    )


@st.composite
def _clusters(draw: st.DrawFn) -> Cluster:
    kinds = draw(st.lists(NAME, min_size=1, max_size=4))
    link = st.none() | st.builds(LinkRate, bytes_per_s=TIME, latency_us=st.floats(0, 1e9))
    return Cluster(
        devices=tuple(
            Device(rank=rank, kind=kind, machine="a", memory_bytes=draw(st.integers(1, 1 << 62)))
            for rank, kind in enumerate(kinds)
        ),
        inside=draw(link),
        between=draw(link),
    )


@st.composite
def _plans(draw: st.DrawFn) -> Plan:
    counts = draw(st.lists(st.integers(1, 50), min_size=1, max_size=4))
    reason = st.builds(PlanReason, measured=TIME, threshold=TIME, unit=st.just("us"), sentence=st.text(max_size=12))
    low, step, high = sorted(draw(st.tuples(TIME, TIME, TIME)))
    return Plan(
        plan=draw(NAME),
        job=draw(JOB),
        engine=draw(st.sampled_from(Engine)),
        strategy=draw(st.sampled_from(Strategy)),
        batch=sum(counts),
        devices=tuple(
            DevicePlan(
                rank=rank,
                samples=count,
                microbatches=draw(st.sampled_from((1, count))),
                state_share=1 / len(counts),
                planned_bytes=draw(COUNT),
                allowed_bytes=draw(COUNT),
                busy_share=draw(st.floats(0, 1)),
            )
            for rank, count in enumerate(counts)
        ),
        step_low_us=low,
        step_us=step,
        step_high_us=high,
        reasons=draw(st.lists(reason, max_size=2).map(tuple)),
    )


def _requests(profiles: st.SearchStrategy[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[PlanRequest]:
    return st.builds(
        PlanRequest, job=JOB, profiles=profiles, cluster=_clusters(), batch=st.integers(1, 65_536), **fields
    )


_REFUSED: st.SearchStrategy[PlanReply] = st.builds(
    PlanReply,
    refused=NAME,
    missing_bytes=COUNT,
    alternatives=st.lists(st.builds(Alternative, strategy=st.sampled_from(Strategy)), max_size=2).map(tuple),
)
PLANNING: dict[type[Message], st.SearchStrategy[Message]] = {
    LayerProfile: _profiles(),
    Plan: _plans(),
    PlanReply: _REFUSED | st.builds(PlanReply, plan=_plans()),
    PlanRequest: _requests(st.lists(_profiles(), min_size=1, max_size=2).map(tuple))
    | _requests(st.just(()), task=NAME),
}
"""Anything that the contract allows of each."""
