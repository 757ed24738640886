"""What other work took from a local run: shares from counters, their bounds, and where they are said."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.runs import CpuContention
from services.collector.profiler.contention import (
    ContentionCounters,
    MachineTime,
    ThreadTime,
    ThreadTimes,
    contention_between,
)
from services.collector.profiler.machine_times import read_machine, read_threads

seconds = st.floats(0.0, 1e6)


def counters(
    elapsed_s: float,
    busy_s: float,
    own_s: float,
    threads: tuple[float, float] | None = None,
    *,
    steal_s: float = 0.0,
    throttled_s: float = 0.0,
) -> ContentionCounters:
    times = None if threads is None else ThreadTime(*threads)
    return ContentionCounters(elapsed_s, MachineTime(busy_s, steal_s), own_s, times, throttled_s)


def test_other_work_is_what_the_machine_did_and_the_workers_did_not() -> None:
    # 100 s on two processors: 180 s busy, of them the workers' 50; their threads waited for 50 s, 23 by their own limit
    found = contention_between(
        counters(0.0, 1_000.0, 7.0, None), counters(100.0, 1_180.0, 57.0, (50.0, 50.0), throttled_s=23.0), 2
    )

    assert found is not None
    assert (found.other_cores, found.own_cores, found.steal_share) == (1.3, 0.5, 0.0)
    assert found.wait_share == pytest.approx(27 / 77)
    assert found.summary == "other work used 1.3 of 2 cores, the workers waited for a core 35 % of the time"
    assert found.lost_share == pytest.approx(27 / 77)
    assert found.is_high


def test_steal_is_of_what_was_wanted() -> None:
    found = contention_between(counters(0.0, 0.0, 0.0), counters(10.0, 9.0, 9.0, (9.0, 0.0), steal_s=1.0), 2)

    assert found is not None
    assert found.steal_share == pytest.approx(0.1)
    assert found.lost_share == pytest.approx(0.1)
    assert "the hypervisor took 10 % of what was wanted" in found.summary


def test_workers_that_wait_for_each_other_lose_nothing_to_other_work() -> None:
    """Three workers on two processors, and nothing else: a third of the time each waits."""
    found = contention_between(counters(0.0, 0.0, 0.0), counters(90.0, 180.0, 180.0, (180.0, 90.0)), 2)

    assert found is not None
    assert found.wait_share == pytest.approx(1 / 3)
    assert found.lost_share == 0.0
    assert not found.is_high


def test_waiting_while_a_limit_would_have_stopped_them_loses_nothing() -> None:
    """A worker of half a core gets it, however often it waits for it."""
    last = counters(100.0, 150.0, 50.0, (50.0, 40.0), throttled_s=10.0)
    limited, free = (contention_between(counters(0.0, 0.0, 0.0), last, 2, limit) for limit in (0.5, None))

    assert limited is not None
    assert free is not None
    assert limited.wait_share == free.wait_share == pytest.approx(3 / 8)
    assert (limited.lost_share, free.lost_share) == (0.0, pytest.approx(3 / 8))


def test_a_kernel_that_counts_no_waiting_leaves_the_share_unknown() -> None:
    found = contention_between(counters(0.0, 0.0, 0.0), counters(10.0, 15.0, 5.0), 2)

    assert found is not None
    assert found.wait_share is None
    assert found.summary == "other work used 1 of 2 cores"
    assert found.is_high
    assert contention_between(counters(3.0, 0.0, 0.0), counters(3.0, 1.0, 0.0), 2) is None


@given(
    elapsed_s=st.floats(1e-3, 1e6),
    values=st.tuples(seconds, seconds, seconds, seconds, seconds, seconds),
    cores=st.integers(1, 512),
    share=st.floats(0.01, 1.0),
)
def test_shares_are_shares_whatever_is_counted(
    elapsed_s: float, values: tuple[float, ...], cores: int, share: float
) -> None:
    limit = share * cores
    busy_s, own_s, ran_s, waited_s, steal_s, throttled_s = values
    last = counters(elapsed_s, busy_s, own_s, (ran_s, waited_s), steal_s=steal_s, throttled_s=throttled_s)
    found = contention_between(counters(0.0, 0.0, 0.0), last, cores, limit)

    assert found is not None
    assert 0.0 <= found.other_cores <= cores
    assert 0.0 <= found.lost_share <= 1.0
    # the same work on the processors that others used, too, and within the limit, takes no less than this
    quiet, most_s = 1.0 - found.steal_share, min(own_s + found.other_cores * elapsed_s, limit * elapsed_s)
    assert (1.0 - found.lost_share) * most_s >= quiet * min(own_s, most_s) - 1e-9 * most_s


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 100.0)), min_size=1, max_size=20), st.integers(1, 7))
def test_threads_that_come_and_go_add_up(steps: list[tuple[float, float]], lifetime: int) -> None:
    """A thread ends after some samples, and another one begins, with its id or with another."""
    times, now = ThreadTimes(), ThreadTime(0.0, 0.0)
    for at, (ran_s, waited_s) in enumerate(steps):
        if at % lifetime == 0:
            now = ThreadTime(0.0, 0.0)
            times.add({})
        now = ThreadTime(now.ran_s + ran_s, now.waited_s + waited_s)
        times.add({at // lifetime % 3: now})

    assert times.ran_s == pytest.approx(math.fsum(ran_s for ran_s, _ in steps))
    assert times.waited_s == pytest.approx(math.fsum(waited_s for _, waited_s in steps))
    assert (times.total is None) == (times.ran_s == 0.0)


def test_an_id_that_is_used_again_counts_from_its_start() -> None:
    times = ThreadTimes()
    for ran_s in (5.0, 7.0, 1.0):
        times.add({9: ThreadTime(ran_s, 0.0)})

    assert times.total == ThreadTime(8.0, 0.0)


def test_the_kernels_files(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  400 100 200 9000 50 60 40 30 70 5\ncpu0 1 1 1 1 1 1 1 1 1 1\nintr 7\n")
    for thread, text in ((11, "1500000000 500000000 9\n"), (12, "0 0 0\n"), (13, "")):
        (tmp_path / "11" / "task" / str(thread)).mkdir(parents=True)
        (tmp_path / "11" / "task" / str(thread) / "schedstat").write_text(text)

    assert read_machine(tmp_path) == MachineTime(busy_s=8.0, steal_s=0.3)
    # 13 has ended while it was read; 99 had ended before
    assert read_threads([11, 99], tmp_path) == {11: ThreadTime(1.5, 0.5), 12: ThreadTime(0.0, 0.0)}


def test_this_machines_files() -> None:
    assert read_machine().busy_s > 0


def test_a_message_of_shares_refuses_what_is_none() -> None:
    with pytest.raises(ValueError, match="wait_share"):
        CpuContention(cores=2, other_cores=1, own_cores=1, limit_cores=2, wait_share=1.5)
