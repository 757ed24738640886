"""Hypothesis strategies for every message type: anything that the contract allows."""

from __future__ import annotations

import string
import typing
from datetime import date
from typing import Any

import numpy as np
from hypothesis import strategies as st

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.codec import MESSAGE_TYPES
from schemas.containers import ContainerChange, ContainerEvent, ContainerSource, LimitWriter, NodeInfo
from schemas.leases import Heartbeat, Lease, Members
from schemas.limits import LimitDecisions, LimitReply, LimitsApplied, LimitUpdate
from schemas.message import ROW_SEPARATOR, ColumnarMessage, Message
from schemas.oom import MemoryReply, MemoryRequest, OomCause, OomEvent, OomKind
from schemas.queries import (
    AppState,
    ContainerState,
    ExplainReply,
    ExplainRequest,
    Explanation,
    QueryError,
    StateReply,
    StateRequest,
)
from schemas.runs import SERIES, WorkerSeries
from schemas.scheduling import JOB_NAME_PATTERN, RunTime
from schemas.trainings import STEP_COLUMNS, StepBatch, TrainingChange, TrainingEvent
from tests.support.planning_strategies import PLANNING
from tests.support.trainer_plans import plan_of

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
COUNT = st.integers(0, (1 << 62) - 1)
_COUNTS = {"incarnation", "report_seq", "time_ns", "epoch", "seq"}
TEXT = st.text(max_size=12)
NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z").filter(lambda name: name.isascii())
_JOB_NAMES = st.from_regex(JOB_NAME_PATTERN.replace("$", r"\Z"))
KEYS = st.text(string.ascii_letters + string.digits + "_.-é", min_size=1, max_size=20)
SECONDS = st.floats(0, 1e9)
_MIB = 1 << 20


def _apps() -> st.SearchStrategy[AppSpec]:
    return st.builds(
        AppSpec,
        name=NAMES,
        cpu_limit=st.floats(1, 1_000),
        memory_limit=st.integers(64 * _MIB, 1 << 50),
        policy=st.sampled_from(["waterfill", "escra"]),
        mode=st.sampled_from(["observe", "enforce"]),
        sigma=st.floats(0, 0.99),
        kappa=st.floats(0.01, 1),
        gamma=st.floats(0, 100),
        upsilon=st.floats(0.01, 100),
        window=st.integers(1, 64),
        delta=st.integers(_MIB, 1 << 40),
        container_min_cpu=st.floats(0.01, 0.5),
        container_max_cpu=st.none() | st.floats(0.5, 64),
        container_min_memory=st.integers(4 * _MIB, 8 * _MIB),
        container_max_memory=st.none() | st.integers(8 * _MIB, 1 << 40),
    )


def _events() -> st.SearchStrategy[ContainerEvent]:
    return st.builds(
        ContainerEvent,
        change=st.sampled_from(ContainerChange),
        app=TEXT,
        node=TEXT,
        container=TEXT,
        name=TEXT,
        source=st.sampled_from(ContainerSource),
        time_ns=INT64,
        incarnation=INT64,
        quota_us=INT64,
        limit_bytes=INT64,
        oom_kills=INT64,
        reason=TEXT,
        writer=st.none() | st.builds(LimitWriter, pid=INT64, comm=TEXT, cgroup=TEXT),
    )


def _nodes() -> st.SearchStrategy[NodeInfo]:
    return st.builds(
        NodeInfo,
        node=TEXT,
        incarnation=INT64,
        time_ns=INT64,
        host_cpus=INT64,
        memory_bytes=INT64,
        cgroup_version=st.sampled_from([0, 1, 2]),
        telemetry_source=TEXT,
        docker=st.booleans(),
        container_count=INT64,
        version=TEXT,
        memory_guard=TEXT,
        warns_cpu_overcommit=st.booleans(),
        **{
            name: st.none() | INT64
            for name in (
                *("allocatable_memory_bytes", "committed_memory_bytes", "committed_cpu_us", "available_memory_bytes"),
                "allocatable_cpu_us",
            )
        },
        memory_pressure_percent=st.none() | st.floats(0, 100),
        cpu_pressure_percent=st.none() | st.floats(0, 100),
    )


def _states() -> st.SearchStrategy[StateReply]:
    container = st.builds(
        ContainerState,
        container=TEXT,
        node=TEXT,
        quota_us=INT64,
        assigned_us=INT64,
        committed_us=INT64,
        used_us=INT64,
        throttled=st.booleans(),
        memory_usage_bytes=INT64,
        memory_limit_bytes=INT64,
        memory_committed_bytes=INT64,
        admitted=st.booleans(),
        rejection=TEXT,
        report_age_s=SECONDS,
    )
    app = st.builds(
        AppState,
        spec=_apps(),
        cpu_committed_us=INT64,
        cpu_free_us=INT64,
        memory_committed_bytes=INT64,
        memory_free_bytes=INT64,
        memory_reserved_bytes=INT64,
        epoch=INT64,
        owner=TEXT,
        containers=st.lists(container, max_size=2).map(tuple),
    )
    return st.builds(
        StateReply,
        epoch=INT64,
        steps=INT64,
        superseded=st.booleans(),
        replica=TEXT,
        apps=st.lists(app, max_size=2).map(tuple),
    )


def _explanations() -> st.SearchStrategy[ExplainReply]:
    explanation = st.builds(
        Explanation,
        time_ns=INT64,
        container=TEXT,
        resource=st.sampled_from(["cpu", "memory"]),
        before=INT64,
        after=INT64,
        reason=TEXT,
        sentence=TEXT,
    )
    return st.builds(ExplainReply, app=TEXT, summary=TEXT, decisions=st.lists(explanation, max_size=3).map(tuple))


def elements(kind: np.dtype[Any]) -> st.SearchStrategy[Any]:
    """Every value that a column of this type can hold, NaN and infinities included."""
    if kind.kind == "f":
        return st.floats()
    bounds = np.iinfo(kind)
    return st.integers(int(bounds.min), int(bounds.max))


@st.composite
def tables(draw: st.DrawFn, /, model: type[ColumnarMessage], **fields: st.SearchStrategy[Any]) -> ColumnarMessage:
    """A columnar message of up to five rows."""
    keys = draw(st.lists(KEYS, max_size=5, unique=True))
    columns = {
        name: draw(st.lists(elements(kind), min_size=len(keys), max_size=len(keys)))
        for name, kind in model.column_types.items()
    }
    assert all(ROW_SEPARATOR not in key for key in keys)
    return model.build(keys, columns, **{name: draw(strategy) for name, strategy in fields.items()})


def _integers(*names: str) -> dict[str, st.SearchStrategy[int]]:
    return {name: COUNT if name in _COUNTS else INT64 for name in names}


@st.composite
def _reserves(draw: st.DrawFn, *columns: str) -> dict[str, Any]:
    """Applications, and the same number of values in each column."""
    apps = draw(st.lists(TEXT, max_size=3))
    return {"apps": apps} | {name: [draw(COUNT) for _ in apps] for name in columns}


@st.composite
def _replies(draw: st.DrawFn) -> LimitReply:
    columns = ("reserve_given_bytes", "reserve_used_bytes", "reserve_update_seq")
    table = tables(
        LimitReply,
        node=TEXT,
        rejection=st.none() | TEXT,
        stale_apps=st.lists(TEXT, max_size=3).map(tuple),
        **_integers("incarnation", "report_seq", "epoch", "seq"),
    )
    return LimitReply.model_validate(draw(table).model_dump() | draw(_reserves(*columns)))


@st.composite
def _updates(draw: st.DrawFn) -> LimitUpdate:
    update = draw(
        tables(
            LimitUpdate,
            node=TEXT,
            apps=st.lists(TEXT, max_size=3).map(tuple),
            **_integers("incarnation", "epoch", "seq", "time_ns"),
        )
    )
    if update.row_count:
        return update
    return LimitUpdate.model_validate(
        update.model_dump() | draw(_reserves("reserve_given_bytes", "container_max_bytes"))
    )


@st.composite
def _series(draw: st.DrawFn) -> WorkerSeries:
    """Columns of one length, of finite values that are not negative."""
    length = draw(st.integers(0, 5))
    values = st.lists(SECONDS, min_size=length, max_size=length)
    columns = {name: np.array(draw(values), dtype="<f8").tobytes() for name in SERIES}
    return WorkerSeries(worker=draw(TEXT), **columns)


@st.composite
def _steps(draw: st.DrawFn) -> StepBatch:
    """Columns of one length."""
    length = draw(st.integers(0, 5))
    columns = {name: tuple(draw(st.lists(COUNT, min_size=length, max_size=length))) for name in STEP_COLUMNS}
    names = {"job": draw(_JOB_NAMES), "node": draw(NAMES), "training": draw(NAMES)}
    return StepBatch(**names, generation=draw(COUNT), rank=draw(st.integers(0, 1_023)), time_ns=draw(COUNT), **columns)


def _training_events() -> st.SearchStrategy[TrainingEvent]:
    return st.builds(
        TrainingEvent,
        job=_JOB_NAMES,
        node=NAMES,
        training=NAMES,
        change=st.sampled_from(TrainingChange),
        plan=st.none() | st.just(plan_of([6, 2], [2, 1], [3, 1])),
        measured_step_us=SECONDS,
        predicted_step_us=SECONDS,
        cause=TEXT,
        exit_code=st.none() | st.integers(-255, 255),
        checkpoint=TEXT,
        **dict.fromkeys(("generation", "sequence", "time_ns", "step", "total"), COUNT),
    )


def _bounded(kind: type, metadata: list[Any]) -> st.SearchStrategy[Any]:
    """Numbers or text within what the field's metadata allows."""
    limits = {
        name: getattr(limit, name)
        for limit in metadata
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern")
        if getattr(limit, name, None) is not None
    }
    if "pattern" in limits:
        return st.from_regex(limits["pattern"].replace("$", r"\Z"))
    if kind is str:
        return st.text(min_size=limits.get("min_length", 0), max_size=12)
    if kind is int:
        return st.integers(
            limits.get("ge", limits.get("gt", -(1 << 63) - 1) + 1), limits.get("le", limits.get("lt", 1 << 63) - 1)
        )
    low, high = limits.get("ge", limits.get("gt", 0.0)), limits.get("le", limits.get("lt", 1e9))
    return st.floats(low, high, exclude_min="gt" in limits, exclude_max="lt" in limits)


def _derived(annotation: Any, metadata: list[Any] | None = None) -> st.SearchStrategy[Any]:
    """Anything that a field's annotation allows: for messages whose fields do not depend on each other."""
    if typing.get_origin(annotation) is typing.Annotated:
        inner, *extra = typing.get_args(annotation)
        return _derived(inner, [part for more in extra for part in getattr(more, "metadata", [more])])
    if annotation in {str, int, float} and metadata:
        return _bounded(annotation, metadata)
    plain = {str: TEXT, int: INT64, bool: st.booleans(), float: SECONDS, type(None): st.none(), date: st.dates()}
    if annotation in plain:
        return plain[annotation]
    if isinstance(annotation, type):
        return _any(annotation) if issubclass(annotation, Message) else st.sampled_from(annotation)
    return _composed(annotation, metadata or [])


def _composed(annotation: Any, metadata: list[Any]) -> st.SearchStrategy[Any]:
    """Tuples of any length, dictionaries, unions and literals."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return st.sampled_from(arguments)
    if typing.get_origin(annotation) is tuple:
        least = max((getattr(limit, "min_length", 0) or 0 for limit in metadata), default=0)
        return st.lists(_derived(arguments[0]), min_size=least, max_size=3).map(tuple)
    if typing.get_origin(annotation) is dict:
        return st.dictionaries(_derived(arguments[0]), _derived(arguments[1]), max_size=3)
    return st.one_of(*map(_derived, arguments))


def _any(model: type[Message]) -> st.SearchStrategy[Message]:
    if model in PLANNING:
        return PLANNING[model]
    if model is WorkerSeries:
        return _series()
    if model is RunTime:
        ascending = st.lists(SECONDS, min_size=3, max_size=3).map(sorted)
        return ascending.map(lambda each: RunTime(low_s=each[0], median_s=each[1], high_s=each[2]))
    return st.builds(
        model, **{name: _derived(field.annotation, field.metadata) for name, field in model.model_fields.items()}
    )


_BY_HAND: dict[type[Message], st.SearchStrategy[Message]] = {
    AppSpec: _apps(),
    CfsBatch: tables(
        CfsBatch,
        app=TEXT,
        node=TEXT,
        period_us=st.integers(1_000, 1_000_000),
        host_cpus=st.integers(1, 65_536),
        reserve_given_bytes=COUNT,
        reserve_used_bytes=COUNT,
        reserve_update_seq=COUNT,
        **_integers("incarnation", "report_seq", "time_ns"),
    ),
    ContainerEvent: _events(),
    ExplainReply: _explanations(),
    ExplainRequest: st.builds(ExplainRequest, app=TEXT, container=st.none() | TEXT, last=INT64),
    Lease: st.builds(Lease, owner=TEXT, epoch=COUNT, time_ns=COUNT),
    Heartbeat: st.builds(Heartbeat, replica=TEXT, epoch=COUNT, time_ns=COUNT),
    Members: st.builds(
        Members,
        rule=TEXT,
        epoch=COUNT,
        previous=COUNT,
        replicas=st.lists(TEXT, max_size=3).map(tuple),
        unable=st.dictionaries(TEXT, st.lists(TEXT, max_size=2).map(tuple), max_size=2),
        time_ns=COUNT,
    ),
    LimitDecisions: tables(
        LimitDecisions,
        app=TEXT,
        mode=st.sampled_from(["observe", "enforce"]),
        policy=TEXT,
        **_integers("epoch", "step", "time_ns", "container_count", "cpu_limit_us", "cpu_allocated_us"),
        **_integers("memory_limit_bytes", "memory_allocated_bytes", "memory_reserved_bytes"),
        update_seq_first=COUNT,
        update_seq_last=COUNT,
    ),
    LimitReply: _replies(),
    LimitsApplied: tables(
        LimitsApplied, app=TEXT, node=TEXT, **_integers("incarnation", "report_seq", "epoch", "seq", "time_ns")
    ),
    LimitUpdate: _updates(),
    MemoryReply: st.builds(
        MemoryReply, app=TEXT, epoch=COUNT, granted_bytes=COUNT, reclaiming_bytes=COUNT, denial=TEXT
    ),
    MemoryRequest: st.builds(
        MemoryRequest,
        app=TEXT,
        node=TEXT,
        incarnation=COUNT,
        container=TEXT,
        wanted_bytes=COUNT,
        usage_bytes=COUNT,
        limit_bytes=INT64,
        tasks_blocked=st.booleans(),
        time_ns=COUNT,
    ),
    NodeInfo: _nodes(),
    OomEvent: st.builds(
        OomEvent,
        kind=st.sampled_from(OomKind),
        cause=st.sampled_from(OomCause),
        app=TEXT,
        node=TEXT,
        container=TEXT,
        reason=TEXT,
        **_integers("incarnation", "time_ns", "usage_bytes", "limit_before_bytes", "limit_after_bytes"),
        **_integers("reserve_bytes", "latency_us", "blocked_us", "oom_kills"),
    ),
    QueryError: st.builds(QueryError, code=INT64, message=TEXT),
    StateReply: _states(),
    StateRequest: st.builds(StateRequest, app=st.none() | TEXT),
    StepBatch: _steps(),
    TrainingEvent: _training_events(),
}
MESSAGES = _BY_HAND | {model: _any(model) for model in MESSAGE_TYPES.values() if model not in _BY_HAND}
"""One strategy per registered message type."""

ANY_MESSAGE: st.SearchStrategy[Message] = st.one_of(*MESSAGES.values())
