"""A job's load from the steps that it has finished."""

from __future__ import annotations

from services.aggregator.core.load import WINDOW_STEPS, LoadMeter
from services.aggregator.core.packing import JobLoad


def test_two_steps_are_needed() -> None:
    meter = LoadMeter("a")
    meter.step(1_000, 10)
    assert meter.load() is None

    meter.step(1_500, 20)

    assert meter.load() == JobLoad("a", 500, 15)


def test_one_stopped_worker_changes_nothing() -> None:
    meter = LoadMeter("a")
    for step in range(9):
        meter.step(step * 100, 10)
    meter.step(5_000_000, 10)

    assert meter.load() == JobLoad("a", 100, 10)


def test_only_the_last_steps_count() -> None:
    meter = LoadMeter("a")
    for step in range(50):
        meter.step(step * 100, 10)
    for step in range(WINDOW_STEPS + 1):
        meter.step(10_000 + step * 300, 30)

    assert meter.load() == JobLoad("a", 300, 30)
