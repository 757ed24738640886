"""Divisions of samples by enumeration: what the planner's dynamic programmes are compared with, and problems for it."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

from services.planner.core import cephalo
from services.planner.core.profile import Device, Latency, LayerTimes, MemoryProfile

MS = st.floats(0.5, 8)


@st.composite
def affine_problems(draw: st.DrawFn, most_devices: int = 3, most_samples: int = 8) -> cephalo.Problem:
    """Small problems whose memory grows evenly with the micro-batch, alike on all devices."""
    count = draw(st.integers(1, most_devices))
    slope, kept = draw(st.floats(0.1, 1.5)), draw(st.sampled_from((0.0, 0.0, 0.2)))
    memory = MemoryProfile(tuple(0.5 + slope * size for size in (1, 2, 3)), 0.5, kept)
    return cephalo.Problem(
        devices=tuple(Device(rank, "x", draw(st.floats(3, 14))) for rank in range(count)),
        layers=tuple(layers(draw, count) for _ in range(draw(st.integers(1, 2)))),
        memory=(memory,) * count,
        # Odd: then the state is no sum of rooms, and rounding does not decide whether it fits.
        parameters=draw(st.integers(10_000_000, 1_200_000_000)) | 1,
        batch=draw(st.integers(1, most_samples)),
        max_microbatch=draw(st.sampled_from((3, 100))),
        accumulation_ms=tuple(draw(st.floats(0, 10)) for _ in range(count)),
    )


def layers(draw: st.DrawFn, devices: int) -> cephalo.Layers:
    times = tuple(
        LayerTimes(Latency(draw(MS), draw(st.floats(0, 2))), Latency(draw(MS), draw(st.floats(0, 2))))
        for _ in range(devices)
    )
    return cephalo.Layers(times, draw(st.floats(0, 8)), draw(st.floats(0, 8)), draw(st.integers(1, 3)))


def divisions(problem: cephalo.Problem) -> Iterator[cephalo.Split]:
    """All there are: each device has at least one micro-batch of at least one sample."""

    def rest(place: int, left: int) -> Iterator[tuple[tuple[int, int], ...]]:
        if place == len(problem.devices):
            if left == 0:
                yield ()
            return
        for samples in range(1, left + 1):
            for count in (count for count in range(1, samples + 1) if samples % count == 0):
                if samples // count <= problem.max_microbatch:
                    yield from (((samples, count), *others) for others in rest(place + 1, left - samples))

    for pairs in rest(0, problem.batch):
        yield cephalo.Split(tuple(samples for samples, _ in pairs), tuple(count for _, count in pairs))


def fits(problem: cephalo.Problem, split: cephalo.Split) -> bool:
    """Each device has room for its samples, and all together for the state."""
    rooms = [
        allowed - held for allowed, held in zip(problem.allowed_gib, cephalo.held_gib(problem, split), strict=True)
    ]
    return min(rooms) >= 0 and sum(rooms) >= problem.state_gib
