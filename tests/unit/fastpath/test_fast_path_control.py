"""The data-plane process's socket to its service: records in order, and waiting for who does not read."""

from __future__ import annotations

import fcntl
import json
import resource
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator

import pytest

from services.fastpath.control import MAX_MESSAGE_BYTES, Command, ControlLink, ReceivedCommand

BEYOND_SELECT = 1_024


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """As many as a test above `BEYOND_SELECT` needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard > 2 * BEYOND_SELECT
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * BEYOND_SELECT), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def ends(many_descriptors: None) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The service's, and the data-plane process's with a high number."""
    service, low = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with service, low, socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, BEYOND_SELECT)) as high:
        low.close()
        service.settimeout(60)
        yield service, high


def records(count: int) -> deque[dict[str, object]]:
    return deque({"number": number, "text": "x" * 4_000} for number in range(count))


def read(service: socket.socket) -> int:
    return int(json.loads(service.recv(MAX_MESSAGE_BYTES))["event"]["number"])


def test_what_the_service_does_not_take_stays_in_order(ends: tuple[socket.socket, socket.socket]) -> None:
    service, end = ends
    assert end.fileno() >= BEYOND_SELECT
    link, waiting = ControlLink(end), records(2_000)
    link.send(waiting)
    taken = 2_000 - len(waiting)
    assert 0 < taken < 2_000
    began_s = time.monotonic()
    link.send(waiting, within_s=0.05)
    assert time.monotonic() - began_s >= 0.05
    assert len(waiting) == 2_000 - taken

    assert [read(service) for _ in range(taken)] == list(range(taken))
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.extend(read(service) for _ in range(2_000 - taken)))
    reader.start()
    link.send(waiting, within_s=60)
    reader.join(60)
    assert (not waiting, found) == (True, list(range(taken, 2_000)))


def test_a_service_that_is_gone_is_an_order_to_stop(ends: tuple[socket.socket, socket.socket]) -> None:
    service, end = ends
    link, waiting = ControlLink(end), records(2_000)
    service.send(json.dumps({"command": "tors", "tors": {"p1": "10.255.0.101"}}).encode())
    assert link.receive() == [ReceivedCommand(Command.TORS, tors={"p1": "10.255.0.101"})]

    link.send(waiting)
    leaves = threading.Timer(0.05, service.close)
    leaves.start()
    began_s = time.monotonic()
    link.send(waiting, within_s=120)
    assert time.monotonic() - began_s < 60, "nobody waits for who is gone"
    leaves.join(60)
    assert waiting
    [order] = link.receive()
    assert order.kind is Command.STOP
    assert order.reason.startswith("the service is gone")
