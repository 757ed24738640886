"""Truncated variants of finished local runs: the same series, cut as if a time limit had stopped the run earlier.

Estimates from the first third of a run are those of a run stopped there, and the whole duration is known
(docs/dataset.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from schemas.runs import SERIES, RunEnd, RunProfile
from services.collector.profiler.rate import with_estimates
from services.collector.profiler.series import MIN_SAMPLES

PARTS: Final = (3, 10)
"""A run is cut at a third, and at a tenth, of its duration."""
_ITEM_BYTES: Final = 8


def cut_name(run: str, divisor: float) -> str:
    """Return the name of a run that is cut at one part in so many."""
    return f"{run}-cut-{divisor:g}"


def cut_short(profile: RunProfile, divisor: float) -> RunProfile | None:
    """Return the run as it were at `1 / divisor` of its duration; None where that has fewer samples than a run needs.

    Raises:
        ValueError: it has not finished, so the whole duration is unknown.
    """
    if profile.end is not RunEnd.FINISHED:
        raise ValueError(f"{profile.run} had not got to its end")
    duration_s = profile.duration_s / divisor
    samples = int(duration_s / profile.interval_s + 1e-9)
    if samples < MIN_SAMPLES:
        return None
    workers = tuple(
        worker.model_copy(update={name: getattr(worker, name)[: samples * _ITEM_BYTES] for name in SERIES})
        for worker in profile.workers
    )
    cut = {"run": cut_name(profile.run, divisor), "end": RunEnd.TIMED_OUT, "duration_s": duration_s, "workers": workers}
    return with_estimates(profile.model_copy(update={**cut, "exit_codes": ()}))


def cuts_of(profile: RunProfile) -> tuple[RunProfile, ...]:
    """Return all cut variants of a finished run that are long enough; of another one none."""
    if profile.end is not RunEnd.FINISHED:
        return ()
    return tuple(one for divisor in PARTS if (one := cut_short(profile, divisor)) is not None)


def with_cuts(profiles: Iterable[RunProfile]) -> list[RunProfile]:
    """Return the runs, each once by its name, and their truncated variants with today's estimates."""
    runs = {run.run: run for run in profiles}
    return list((runs | {cut.run: cut for run in list(runs.values()) for cut in cuts_of(run)}).values())
