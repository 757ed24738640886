"""Clocks that can be moved, and logs that programs can read."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from itertools import pairwise

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from services._runtime.clock import SystemClock, until_multiple_s
from services._runtime.telemetry.logging import LogLimiter, get_logger, log_once, setup_logging
from tests.support.manual_clock import ManualClock

SERVICES = (
    "advisor",
    "agent",
    "aggregator",
    "allocator",
    "collector",
    "fast_path",
    "memory",
    "planner",
    "reconciler",
    "runner",
    "scheduler",
    "slurm",
)


@pytest.fixture(autouse=True)
def _restore_logging() -> object:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


async def test_manual_clock_wakes_sleepers_in_order() -> None:
    """Each at its own time, whatever the order of their sleeps."""
    clock = ManualClock()
    start = clock.monotonic()
    woken: list[float] = []

    async def sleep(seconds: float) -> None:
        await clock.sleep_until(start + seconds)
        woken.append(clock.monotonic() - start)

    tasks = [asyncio.create_task(sleep(seconds)) for seconds in (3.0, 1.0, 2.0, -1.0, 9.0)]
    await clock.settle()
    assert woken == [0.0]
    await clock.advance(5.0)
    assert woken == [0.0, 1.0, 2.0, 3.0]
    await clock.advance(5.0)
    await asyncio.gather(*tasks)

    assert woken[-1] == 9.0


async def test_manual_clock_lets_a_loop_sleep_again() -> None:
    """A periodic loop runs once per period within one advance."""
    clock = ManualClock()
    ticks: list[int] = []

    async def run() -> None:
        deadline = clock.monotonic()
        while True:
            deadline += 0.1
            await clock.sleep_until(deadline)
            ticks.append(clock.time_ns())

    task = asyncio.create_task(run())
    await clock.settle()
    await clock.advance(1.0501)
    task.cancel()

    assert len(ticks) == 10
    assert ticks[1] - ticks[0] == pytest.approx(100_000_000, abs=1_000)


async def test_system_clock_returns_at_once_for_the_past() -> None:
    clock = SystemClock()
    await asyncio.wait_for(clock.sleep_until(clock.monotonic() - 100), 60)
    now = clock.monotonic()
    await clock.sleep_until(now + 0.01)

    assert clock.monotonic() >= now + 0.01
    assert clock.time_ns() > 1_600_000_000_000_000_000


@given(st.floats(0, 1e9), st.sampled_from([1.0, 2.0, 5.0]), st.sampled_from(["agent", "runner", "scheduler"]))
def test_periodic_work_of_a_service_is_done_at_common_instants(now_s: float, period_s: float, service: str) -> None:
    rest_s = until_multiple_s(period_s, now_s, service)
    assert 0 < rest_s <= period_s
    second_s = now_s + until_multiple_s(1.0, now_s, service)
    late_s = (now_s + rest_s - second_s) % 1.0
    assert min(late_s, 1.0 - late_s) < 1e-6, "longer periods end where a second does"


def test_services_of_one_host_do_not_wake_up_at_the_same_instant() -> None:
    """Those of a host whose services are all on it: none within a millisecond of another."""
    wake_s = sorted(until_multiple_s(1.0, 1_000.0, service) for service in SERVICES)

    assert min(later - earlier for earlier, later in pairwise(wake_s)) > 0.001


def test_json_lines() -> None:
    """Our events and those of libraries, one JSON object each, exceptions as structure."""
    stream = io.StringIO()
    setup_logging("agent", level="info", log_format="auto", stream=stream)
    log = get_logger("bus")
    log.error("it_failed", subject="tb.x", exc_info=ValueError("x"))
    log.debug("not_shown")
    logging.getLogger("some.library").warning("from a library")

    ours, theirs = (json.loads(line) for line in stream.getvalue().splitlines())

    assert (ours["event"], ours["service"], ours["component"], ours["level"]) == ("it_failed", "agent", "bus", "error")
    assert ours["exception"][0]["exc_type"] == "ValueError"
    assert (theirs["event"], theirs["service"]) == ("from a library", "agent")


def test_console_lines() -> None:
    """For people; a logger made before the set-up follows it."""
    log = get_logger("early")
    stream = io.StringIO()
    setup_logging("agent", level="debug", log_format="console", stream=stream)
    log.debug("hello", answer=42)

    assert "hello" in stream.getvalue()
    assert "answer=42" in stream.getvalue()


@pytest.mark.parametrize(("value", "is_styled"), [("", True), ("1", False)])
def test_console_lines_have_no_style_with_no_color(
    value: str, is_styled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", value)
    setup_logging("agent", level="debug", log_format="console", stream=stream)
    get_logger("bus").debug("hello")

    assert ("\x1b[" in stream.getvalue()) == is_styled


def test_limiter_counts_what_it_holds_back() -> None:
    now = [0.0]
    limiter = LogLimiter(lambda: now[0])
    lines: list[tuple[str, dict[str, object]]] = []

    def log(kind: str, **keys: object) -> None:
        lines.append((kind, keys))

    for _ in range(5):
        log_once(log, limiter, "slow", every_s=1.0, n=1)
    log_once(log, limiter, "other", every_s=1.0)
    now[0] = 1.0
    log_once(log, limiter, "slow", every_s=1.0, n=2)

    assert lines == [("slow", {"n": 1}), ("other", {}), ("slow", {"n": 2, "suppressed": 4})]


def test_an_exception_is_logged_without_local_variables() -> None:
    """They hold message contents, and could hold secrets."""
    stream = io.StringIO()
    setup_logging("tiny", level="info", log_format="json", stream=stream)
    password = "hunter" + "2"
    try:
        _fail(password)
    except ValueError:
        get_logger("tiny").exception("failed")

    assert "the cause" in stream.getvalue()
    assert password not in stream.getvalue()


def _fail(secret: str) -> None:
    assert secret
    raise ValueError("the cause")
