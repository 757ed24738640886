"""Traffic of training jobs on shared links, for tests of what interleaves them."""

from __future__ import annotations

from typing import Final

from schemas.scheduling import (
    AttemptStart,
    ClusterLink,
    ClusterNode,
    EstimateSource,
    IterationSample,
    IterationSource,
    JobSpec,
    JobSubmitted,
    Preemption,
    ScheduleDecision,
    ScheduleEvent,
    TrafficPhase,
    TrafficProfile,
    Trigger,
)

MBIT: Final = 1_000_000
LINK: Final = ClusterLink(link="rack-1-up", bits_per_s=100 * MBIT, nodes=("n1", "n2"))
RACKS: Final = {"n1": "r1", "n2": "r1", "n3": "r2", "n4": "r2"}
COMPUTING_MS: Final = 700
SENT_BYTES: Final = 6_750_000
ALONE_MS: Final = 540
"""6.75 MB at 100 Mbit/s."""


def profile(
    job: str, period_ms: int, sending_ms: int, bits_per_s: int = 100 * MBIT, **changes: object
) -> TrafficProfile:
    """A job that sends once in each iteration, at the begin."""
    plain = TrafficProfile(
        job=job,
        attempt=1,
        period_ms=period_ms,
        phases=(TrafficPhase(begin_ms=0, end_ms=sending_ms, bits_per_s=bits_per_s),),
        sent_bytes=bits_per_s * sending_ms // 8_000,
    )
    return plain.model_copy(update=changes)


def sample(
    job: str, node: str = "n1", time_ms: int = 0, sending_ms: int = ALONE_MS, **changes: object
) -> IterationSample:
    """An iteration of a job that computes for `COMPUTING_MS` and sends `SENT_BYTES` in this time, seen at rank 0."""
    plain = IterationSample(
        job=job,
        attempt=1,
        rank=0,
        node=node,
        time_ns=time_ms * 1_000_000,
        period_us=1_000 * (COMPUTING_MS + sending_ms),
        sending_us=1_000 * sending_ms,
        sent_bytes=SENT_BYTES,
        source=IterationSource.SOCKETS,
        congestion_control="reno",
    )
    return plain.model_copy(update=changes)


def submitted(job: str, **fields: object) -> JobSubmitted:
    """Two workers that may be preempted."""
    plain = {"job": job, "workers": 2, "command": ("x",), "directory": "/", "preemption": Preemption.CHECKPOINT}
    return JobSubmitted(spec=JobSpec.model_validate(plain | fields), estimate_source=EstimateSource.NONE)


def two_jobs(time_ns: int, slots: int = 2, **fields: object) -> list[ScheduleEvent]:
    """A log: four nodes in two racks, and the jobs a and b that run over the first rack's uplink."""
    starts = (
        AttemptStart(job="a", attempt=1, nodes=("n1", "n3")),
        AttemptStart(job="b", attempt=1, nodes=("n2", "n4")),
    )
    return [
        ScheduleEvent(
            leader="s",
            time_ns=time_ns,
            nodes=tuple(ClusterNode(node=node, slots=slots, rack=rack) for node, rack in RACKS.items()),
            links=(LINK,),
            submitted=(submitted("a", **fields), submitted("b", **fields)),
            decision=ScheduleDecision(trigger=Trigger.SUBMITTED, policy="index", starts=starts),
        )
    ]
