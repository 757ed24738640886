"""When a job has sent, from the kernel's times of several connections."""

from __future__ import annotations

from typing import NamedTuple, cast

import pytest

from services._host.netlink.diag_codec import TcpCounters
from services._host.netlink.socket import Request
from services.runner.tcp_counters import Sent, _Connection, _Job, _Network

MIB, MS = 1 << 20, 1_000_000


class Now(NamedTuple):
    """What the kernel says of a connection at the second read; 0 of all before."""

    sent_bytes: int
    busy_ms: int | None
    quiet_ms: int


@pytest.mark.parametrize(
    ("connections", "quiet_ms", "busy_ms"),
    [
        pytest.param([Now(MIB, 50, 20)], 20, 50, id="one"),
        pytest.param([Now(MIB, 50, 20), Now(200, 1, 0)], 20, 50, id="a heartbeat after the gradient is none of it"),
        pytest.param([Now(MIB, 50, 50), Now(MIB, 50, 0)], 0, 100, id="one after another"),
        pytest.param([Now(MIB, 60, 0), Now(MIB, 30, 30)], 0, 60, id="side by side"),
        pytest.param([Now(MIB, 50, 20), Now(0, 0, 9_000)], 20, 50, id="one is idle"),
        pytest.param([Now(200, 1, 30), Now(200, 1, 5)], 5, 26, id="heartbeats only"),
        pytest.param([Now(0, 0, 700)], 0, 0, id="nothing"),
    ],
)
def test_what_several_connections_say_of_their_job(connections: list[Now], quiet_ms: int, busy_ms: int) -> None:
    assert told(connections) == (MS * quiet_ms, MS * busy_ms)


def test_one_of_which_the_kernel_says_nothing_leaves_the_times_unknown() -> None:
    assert told([Now(MIB, 50, 20), Now(MIB, None, 0)])[1] is None


def told(connections: list[Now]) -> tuple[int, int | None]:
    job = _Job(cast("_Network", None), Sent())
    for number, now in enumerate(connections):
        identity = bytes([number])
        before = TcpCounters(0, 0, None if now.busy_ms is None else 0)
        job.connections[identity] = _Connection(identity, cast("Request", None), before)
    job.note_times()
    for each, now in zip(job.connections.values(), connections, strict=True):
        job.update(each, TcpCounters(now.sent_bytes, 0, now.busy_ms and now.busy_ms * 1_000, now.quiet_ms))
    job.note_times()
    return job.sent.quiet_ns, job.sent.busy_ns
