"""Growth after idling: options, the kernel's counters, figures and tables."""

from __future__ import annotations

import json

import pytest

from tests.bench import memory, memory_idle
from tests.bench.machine import Machine
from tests.bench.memory_growth import agent_environment
from tests.bench.memory_idle import IdleRun, summary, throttling

MACHINE = Machine("a processor", 2, 8.0, "6.1", "cgroup v1", "3.11", (0.0, 0.0, 0.0))


def grown(seconds: float, free_seconds: float, kind: str = "touch", **more: object) -> IdleRun:
    run = IdleRun(kind, "default", "off", 10.0, 1_500, seconds, free_seconds, 80_000.0, 3, 0.075, 0.004)
    for name, value in more.items():
        setattr(run, name, value)
    return run


def test_throttled_time_is_nanoseconds_in_version_1_and_microseconds_in_version_2() -> None:
    first = "nr_periods 40\nnr_throttled 7\nthrottled_time 123456789\nnr_bursts 0\nburst_time 0\n"
    second = "usage_usec 5\nuser_usec 3\nsystem_usec 2\nnr_periods 40\nnr_throttled 7\nthrottled_usec 123456\n"
    assert throttling(first) == (7, pytest.approx(123_456.789))
    assert throttling(second) == (7, 123_456.0)


def test_a_growth_is_compared_with_the_one_without_limits_of_the_same_run() -> None:
    row = summary([grown(2.0, 1.0), grown(1.5, 0.5), grown(1.0, 1.0)])
    assert (row["of_free_duration"]["median"], row["of_free_duration"]["most"]) == (2.0, 3.0)
    assert row["throttled_ms"]["median"] == 80.0
    assert row["longest_step_ms"]["median"] == 75.0
    assert row["free_longest_step_ms"]["median"] == 4.0


def test_a_killed_load_has_no_duration_and_is_counted() -> None:
    row = summary([grown(2.0, 1.0), grown(0.0, 1.0, kills=1, failures=["the load was killed"])])
    assert (row["runs"], row["ended"], row["kills"], row["failed_calls"]) == (2, 1, 1, 1)
    assert row["duration_ms"]["count"] == 1
    assert summary([grown(0.0, 1.0)])["duration_ms"] is None


def test_the_table_of_idling_has_a_line_for_each_kind() -> None:
    lines = memory_idle.table(MACHINE, [grown(2.0, 1.0), grown(0.0, 1.0, "read", kills=1)]).splitlines()
    assert lines[2] == "growth by 1536 MiB after 10 s without work, kernel programs off: median (range)"
    touch, read = (line.split() for line in lines[-2:])
    assert touch[:5] == ["default", "touch", "1", "2000", "(2000-2000)"]
    assert "2.00" in touch
    assert read[:4] == ["default", "read", "1", "-"]
    assert read[-2:] == ["1", "0"]


def test_the_record_of_idling_is_json() -> None:
    record = json.loads(json.dumps(memory_idle.as_json(MACHINE, [grown(2.0, 1.0)]), allow_nan=False))
    assert record["summary"][0]["kind"] == "touch"
    assert record["runs"][0]["kernel_programs"] == "off"
    assert record["runs"][0]["idle_s"] == 10.0


def test_idling_has_its_own_defaults() -> None:
    plan = memory.parse(["--idle", "10"])
    assert (plan.idle, plan.runs, plan.kinds, plan.schedulings) == (10.0, 20, "touch,read,fork,tmpfs", "default")
    assert memory.parse(["--idle", "10", "--quick"]).runs == 3


def test_without_idling_everything_is_as_before() -> None:
    plan = memory.parse([])
    assert (plan.idle, plan.runs, plan.kernel_programs) == (None, 100, "auto")
    assert (plan.kinds, plan.schedulings) == (",".join(memory.KINDS), ",".join(memory.SCHEDULINGS))
    assert memory.parse(["--agent-killed", "--quick"]).runs == 5


@pytest.mark.parametrize(
    "arguments",
    [["--idle", "0"], ["--idle", "-1"], ["--idle", "5", "--agent-killed"], ["--kernel-programs", "some"]],
)
def test_options_that_make_no_sense_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        memory.parse(arguments)


def test_kernel_programs_are_the_agents_setting() -> None:
    assert memory.parse(["--kernel-programs", "off"]).kernel_programs == "off"
    assert agent_environment("d", "default", "off")["TURNBUCKLE_AGENT__KERNEL_PROGRAMS"] == "off"
