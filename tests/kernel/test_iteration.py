"""Where MLTCP sees iterations, and how much a window grows: kernel/iteration.h, compiled for this process."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.mltcp_iteration import LearnedFlow, build_library

MS, S = 10**6, 10**9
MB = 10**6
RATE = 12.5e6
"""Bytes a second: 100 Mbit/s."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_library(tmp_path_factory.mktemp("kernel"))


class Connection:
    """One that sends at the trunk's rate, and what the program knows of it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._flow = LearnedFlow(library)
        self.now_ns, self.sent = 1_000 * S, 0
        self.begins_ns: list[int] = []

    def pause(self, seconds: float) -> bool:
        """Whether an iteration begins after it."""
        self.now_ns += int(seconds * S)
        begins = self._flow.resume(self.now_ns, int(seconds * S), self.sent)
        if begins:
            self.begins_ns.append(self.now_ns)
        return begins

    def send(self, count: int, *, more: bool = False) -> None:
        """Bytes, all acknowledged; with more to send, nothing of that was."""
        self.sent += count
        self.now_ns += int(count / RATE * S)
        if more:
            self._flow.leave(self.sent)

    def iterate(self, compute_s: float, parts: Sequence[int], between_s: float = 0.015) -> None:
        """One iteration of a job."""
        self.pause(compute_s)
        self.send(parts[0])
        for part in parts[1:]:
            self.pause(between_s)
            self.send(part)

    @property
    def iteration_bytes(self) -> int:
        """As learned; 0: not yet."""
        return self._flow.iteration_bytes

    def growth(self, acked: int = 1_000) -> float:
        """F: what its window grows by, in units of Reno's."""
        return self._flow.scaled(acked, self.sent) / acked


@pytest.fixture
def connection(library: ctypes.CDLL) -> Connection:
    return Connection(library)


def test_a_jobs_iterations_are_learned(connection: Connection) -> None:
    """The first stretch is none, as it may hold the rendezvous; three whole ones make it known."""
    for _ in range(4):
        connection.iterate(0.7, [6_750_000])
        assert connection.iteration_bytes == 0
        assert connection.growth() == 1.0
    connection.pause(0.7)
    assert connection.iteration_bytes == 6_750_000


def test_three_buckets_15_ms_apart_are_one_iteration(connection: Connection) -> None:
    for _ in range(10):
        connection.iterate(0.4, [2 * MB, 3 * MB, MB])
    assert connection.iteration_bytes == 6 * MB
    # 400 ms of computing, 6 MB at 12.5 MB/s and twice 15 ms: 910 ms. The first begins are those of single buckets.
    assert [after - before for before, after in pairwise(connection.begins_ns)][-6:] == [910 * MS] * 6


def test_iterations_of_a_minute_are_not_cut_between_their_buckets(connection: Connection) -> None:
    for _ in range(8):
        connection.iterate(20.0, [100 * MB] * 5)
    assert connection.iteration_bytes == 500 * MB


def test_a_rendezvous_of_22_s_hides_nothing(connection: Connection) -> None:
    """Before any data it is not even a pause; and what is long after a broadcast is forgotten after two windows."""
    connection.send(2_000)
    assert not connection.pause(22.0)
    for _ in range(5):
        connection.iterate(0.4, [MB])
    assert connection.iteration_bytes == MB


def test_a_broadcast_before_the_long_wait_costs_two_windows(connection: Connection) -> None:
    connection.send(4 * MB)
    connection.pause(22.0)
    begin_ns = connection.now_ns
    while connection.iteration_bytes != MB:
        connection.iterate(0.4, [MB])
        assert connection.now_ns - begin_ns < 25 * S, "20 s until it is forgotten, and five iterations of 0.48 s"


def test_a_job_whose_batch_size_changes_is_learned_again_by_its_20th_iteration(connection: Connection) -> None:
    for _ in range(20):
        connection.iterate(0.7, [6_750_000])
    for _ in range(20):
        connection.iterate(0.25, [5 * MB])
    assert connection.iteration_bytes == 5 * MB
    assert connection.begins_ns[-1] - connection.begins_ns[-2] == 650 * MS


def test_a_pause_with_more_to_send_is_none_of_the_program(connection: Connection) -> None:
    """Neither alone, as of a stream to a receiver that reads in parts, nor as the longest in a job's iterations."""
    for _ in range(10):
        connection.send(MB, more=True)
        assert not connection.pause(0.3)
    for _ in range(6):
        connection.send(MB, more=True)
        assert not connection.pause(2.0)
        connection.send(MB)
        connection.pause(0.7)
    assert connection.iteration_bytes == 2 * MB


def test_an_odd_iteration_changes_nothing(connection: Connection) -> None:
    for _ in range(6):
        connection.iterate(0.7, [5 * MB])
    connection.iterate(0.7, [50 * MB])
    connection.pause(0.7)
    assert connection.iteration_bytes == 5 * MB


def test_a_window_grows_by_the_share_that_is_sent(connection: Connection) -> None:
    """1.75 r + 0.25: a quarter at the begin, 1.125 in the middle, twice at the end, up to twice the bytes."""
    for _ in range(5):
        connection.iterate(0.7, [4 * MB])
    connection.pause(0.7)
    found = []
    for part in (0, 2 * MB, 2 * MB, 4 * MB):
        connection.send(part)
        found.append(connection.growth(100_000))
    assert found == pytest.approx([0.25, 1.125, 2.0, 2.0], abs=0.01)
    connection.send(1)
    assert connection.growth() == 1.0, "this is not the iteration that was learned"


@given(st.lists(st.tuples(st.floats(0, 0.0099), st.integers(1, 10 * MB)), max_size=50))
def test_a_stream_without_pauses_is_reno(library: ctypes.CDLL, steps: list[tuple[float, int]]) -> None:
    connection = Connection(library)
    for pause_s, count in steps:
        assert not connection.pause(pause_s)
        connection.send(count)
        assert connection.growth() == 1.0


@given(st.floats(0.05, 3.0), st.lists(st.integers(65_536, 20 * MB), min_size=1, max_size=4), st.integers(1, 5))
def test_any_period_is_found(library: ctypes.CDLL, compute_s: float, parts: list[int], jitter: int) -> None:
    """With computing that varies by up to 25 %: shorter pauses than that lie within iterations."""
    connection = Connection(library)
    for number in range(12):
        connection.iterate(compute_s * (1 + 0.05 * (number * jitter % 6)), parts, between_s=compute_s / 5)
    assert connection.iteration_bytes == sum(parts)


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 50 * MB)), max_size=60), st.integers(1, 100_000))
def test_whatever_comes_the_factor_lies_between_a_quarter_and_two(
    library: ctypes.CDLL, steps: list[tuple[float, int]], acked: int
) -> None:
    connection = Connection(library)
    for pause_s, count in steps:
        connection.pause(pause_s)
        connection.send(count)
        assert 0.25 * acked - 1 <= connection.growth(acked) * acked <= 2 * acked + 1
