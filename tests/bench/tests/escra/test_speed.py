"""`tests.bench.escra.speed`: work, not waiting, is timed."""

from __future__ import annotations

import time

from tests.bench.escra import speed


async def test_it_waits_until_the_moment_and_probes_meanwhile(monkeypatch):
    probes = iter([100.0, 900.0, 300.0, 200.0, 250.0, *[240.0] * 100])
    monkeypatch.setattr(speed, "probe_us", lambda: next(probes))
    end_ns = time.time_ns() + 120_000_000
    # 0, 50, 100 and 120 ms: four probes or, on a busy machine, fewer.
    assert await speed.speed_until(end_ns) in (100.0, 500.0, 300.0, 250.0, 240.0)
    assert time.time_ns() >= end_ns


async def test_a_moment_that_has_passed_is_probed_once(monkeypatch):
    monkeypatch.setattr(speed, "probe_us", lambda: 7.0)
    assert await speed.speed_until(time.time_ns() - 1) == 7.0


def test_a_probe_takes_cpu_time():
    assert 10 < speed.probe_us() < 100_000
