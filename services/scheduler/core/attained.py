"""Service that a job has had, and its transitions. Counters are linear between events, so no clock is needed."""

from __future__ import annotations

from services.scheduler.core.jobs import Job, Phase, changed


def _progress_s(job: Job, now_s: float) -> float:
    """Since the job was counted: time in which it made progress, by the clock."""
    if job.phase is not Phase.RUNNING:
        return 0
    return max(0, now_s - max(job.counted_s, job.productive_from_s))


def pace(job: Job, workers: int) -> float:
    """Progress of an elastic job with so many workers, in a second: seconds with as many as it asks for."""
    if job.elastic is None:
        return 1.0
    return job.elastic.speedups[workers - 1] / job.elastic.speedups[job.slots // job.slots_per_worker - 1]


def executed_s(job: Job, now_s: float) -> float:
    """Run time that was progress, until now; of an elastic job with as many workers as it asks for."""
    progress = _progress_s(job, now_s)
    return job.executed_s + (progress if job.elastic is None else progress * _pace_now(job))


def _pace_now(job: Job) -> float:
    return pace(job, len(job.nodes)) if job.nodes else 1.0


def window_s(job: Job, now_s: float) -> float:
    """Run time of the window, until now."""
    return job.window_s + _progress_s(job, now_s)


def service_slot_s(job: Job, now_s: float) -> float:
    """Attained service, slot-seconds: of an elastic job those that it had, whatever its number of workers was."""
    if job.elastic is None:
        return executed_s(job, now_s) * job.slots
    return job.served_slot_s + _progress_s(job, now_s) * job.held_slots


def window_slot_s(job: Job, now_s: float) -> float:
    """Attained service of the window, slot-seconds."""
    if job.elastic is None:
        return window_s(job, now_s) * job.slots
    return job.window_slot_s + _progress_s(job, now_s) * job.held_slots


def progress_slot_s(job: Job, now_s: float) -> float:
    """Slot-seconds that its progress takes with as many workers as it asks for: what its estimate is compared with."""
    return executed_s(job, now_s) * job.slots


def waited_s(job: Job, now_s: float) -> float:
    """Time without slots since the submission."""
    return job.waited_s + (now_s - job.counted_s if job.phase is Phase.WAITING else 0)


def window_waited_s(job: Job, now_s: float) -> float:
    """Time without slots since the job first ran in its window; 0 before it has."""
    waits = job.phase is Phase.WAITING and job.window_s > 0
    return job.window_waited_s + (now_s - job.counted_s if waits else 0)


def ends_s(job: Job) -> float:
    """When a running job of known duration ends unless it is preempted.

    Raises:
        ValueError: its duration is not known.
    """
    if job.duration_s is None:
        raise ValueError(f"{job.name}: its duration is not known")
    if job.elastic is None:
        return max(job.counted_s, job.productive_from_s) + job.duration_s - job.executed_s
    left_s = max(0.0, job.duration_s - job.executed_s)  # rounding may have made it less than nothing
    return max(job.counted_s, job.productive_from_s) + left_s / _pace_now(job)


def counted(job: Job, now_s: float) -> Job:
    """The same job with its counters as of now."""
    return changed(job, **_counters(job, now_s))


def _counters(job: Job, now_s: float) -> dict[str, float]:
    passed = now_s - job.counted_s if job.phase is Phase.RUNNING else 0
    progress = _progress_s(job, now_s)
    services: dict[str, float] = {}
    if job.elastic is not None:
        services = {"served_slot_s": service_slot_s(job, now_s), "window_slot_s": window_slot_s(job, now_s)}
    return services | {
        "counted_s": now_s,
        "executed_s": executed_s(job, now_s),
        "restoring_s": job.restoring_s + passed - progress,
        "waited_s": waited_s(job, now_s),
        "window_s": job.window_s + progress,
        "window_waited_s": window_waited_s(job, now_s),
    }


def started(job: Job, now_s: float, nodes: tuple[str, ...], restore_s: float, hold_s: float) -> Job:
    """The job with slots from now on.

    Args:
        nodes: of each worker, by rank.
        restore_s: until it makes progress again, if it was preempted before.
        hold_s: for so long it is not preempted.
    """
    return changed(
        job,
        **_counters(job, now_s),
        phase=Phase.RUNNING,
        nodes=nodes,
        productive_from_s=now_s if job.first_start_s is None else now_s + restore_s,
        held_until_s=now_s + hold_s,
        yields_to_s=0.0,
        first_start_s=now_s if job.first_start_s is None else job.first_start_s,
        started_s=now_s,
        starts=job.starts + 1,
        size_held_until_s=0.0 if job.elastic is None else now_s + job.elastic.hold_s,
    )


def resized(job: Job, now_s: float, nodes: tuple[str, ...]) -> Job:
    """The elastic job with another number of workers from now on; it makes no progress until they have formed a group.

    Args:
        nodes: of each worker, by rank.

    Raises:
        ValueError: it is not elastic.
    """
    if job.elastic is None:
        raise ValueError(f"{job.name}: the number of its workers may not change")
    return changed(
        job,
        **_counters(job, now_s),
        nodes=nodes,
        productive_from_s=max(job.productive_from_s, now_s + job.elastic.pause_s),
        size_held_until_s=now_s + job.elastic.hold_s,
        started_s=now_s,
        resizes=job.resizes + 1,
    )


def preempted(job: Job, now_s: float) -> Job:
    """The job without slots from now on."""
    return changed(counted(job, now_s), phase=Phase.WAITING, nodes=(), held_until_s=0, preemptions=job.preemptions + 1)


def promoted(job: Job, now_s: float) -> Job:
    """The job in a new window, as if it had not run yet; the policy gives it a queue."""
    fresh = changed(counted(job, now_s), window_s=0, window_waited_s=0, promotions=job.promotions + 1)
    return fresh if job.elastic is None else changed(fresh, window_slot_s=0)
