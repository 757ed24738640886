"""When requests are meant to be sent. Pure: a load and a seed give the same times for every policy.

The thesis' four workloads (2.6.1) as ratios of one base rate: fixed 400/s is 1; exponential 300/s is 0.75; burst is a
fixed 50/s with exponential bursts of 600/s for 10 s of every 20 s: 1/8 and 1.5; a production trace of 56-548/s is 0.75
on average. Burst cycles and the trace are compressed in time to what a run can show, and the report says by how much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
LoadKind = Literal["fixed", "exponential", "burst", "bursty", "diurnal"]
KINDS: Final[tuple[LoadKind, ...]] = get_args(LoadKind)
TRACES: Final[tuple[LoadKind, ...]] = ("bursty", "diurnal")

EXPONENTIAL_RATIO: Final = 300 / 400
BURST_BASE_RATIO: Final = 50 / 400
BURST_RATIO: Final = 600 / 400
BURST_CYCLE_S: Final = 20.0
"""The thesis'; half of it is a burst."""
TRACE_RATIO: Final = 300 / 400
"""Mean of a whole trace; 56-548/s is 302/s in its middle."""
TRACE_SPEEDUP: Final = 60.0
"""Seconds of trace per second; the thesis plays its trace 10 times as fast, over minutes."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of one run."""

    kind: LoadKind
    rate_rps: float
    """Base rate: what `fixed` sends."""
    seconds: float
    seed: int
    cycle_s: float = BURST_CYCLE_S
    """Of `burst`: it begins with the quiet half."""
    start_s: float = 0.0
    """Of a cycle or trace: where the run begins in it. A burst of a measured window begins in its middle."""

    def __post_init__(self) -> None:
        if self.rate_rps <= 0 or self.seconds <= 0 or self.cycle_s <= 0:
            raise ValueError(f"a load needs a rate, seconds and a cycle above 0: {self}")


def arrivals(load: Load, trace_rps: Floats | None = None) -> Floats:
    """Intended send times in seconds from the begin, ascending, all below ``load.seconds``.

    Args:
        load: what is sent.
        trace_rps: requests per second of each second, for the kinds `TRACES`.

    Raises:
        ValueError: a trace is needed and missing.
    """
    rng = np.random.default_rng(load.seed)
    if load.kind == "fixed":
        return _fixed(load.rate_rps, load.seconds)
    if load.kind == "exponential":
        return _poisson(rng, load.rate_rps * EXPONENTIAL_RATIO, load.seconds)
    if load.kind == "burst":
        return _burst(rng, load)
    if trace_rps is None:
        raise ValueError(f"load {load.kind} needs its trace")
    return _trace(rng, load, trace_rps)


def _fixed(rate_rps: float, seconds: float) -> Floats:
    return np.asarray(np.arange(int(np.ceil(rate_rps * seconds))) / rate_rps, dtype=np.float64)


def _poisson(rng: np.random.Generator, rate_rps: float, seconds: float) -> Floats:
    """Independent exponential gaps, as many as fill the time."""
    expected = rate_rps * seconds
    times = np.cumsum(rng.exponential(1 / rate_rps, int(expected + 6 * np.sqrt(expected) + 16)))
    while times[-1] < seconds:
        times = np.concatenate((times, times[-1] + np.cumsum(rng.exponential(1 / rate_rps, 64))))
    return np.asarray(times[times < seconds], dtype=np.float64)


def _burst(rng: np.random.Generator, load: Load) -> Floats:
    base = _fixed(load.rate_rps * BURST_BASE_RATIO, load.seconds)
    more = _poisson(rng, load.rate_rps * BURST_RATIO, load.seconds)
    in_cycle = (more + load.start_s) % load.cycle_s
    return np.sort(np.concatenate((base, more[in_cycle >= load.cycle_s / 2])))


def _trace(rng: np.random.Generator, load: Load, trace_rps: Floats) -> Floats:
    """A Poisson stream whose rate follows the trace, by thinning; the trace begins anew at its end."""
    scale = load.rate_rps * TRACE_RATIO / trace_rps.mean()
    most_rps = float(trace_rps.max()) * scale
    times = _poisson(rng, most_rps, load.seconds)
    seconds = np.arange(len(trace_rps) + 1)
    rates = np.append(trace_rps, trace_rps[0]) * scale
    at = (load.start_s + times * TRACE_SPEEDUP) % len(trace_rps)
    return np.asarray(times[rng.random(len(times)) * most_rps < np.interp(at, seconds, rates)], dtype=np.float64)
