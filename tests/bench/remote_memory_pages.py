"""What one page costs the daemon of remote memory. ``make bench-remote-memory``.

A daemon's process on the loopback, and a client that reads and writes single pages at random places, one or 16
under way. Nothing is asserted.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import time
from dataclasses import dataclass
from typing import Final

from services._runtime.child_process import AnsweringChild
from services.memory.adapters.nbd_client import connect
from services.memory.core import nbd
from services.memory.core.nbd import Command
from tests.bench.figures import Spread, percentiles
from tests.bench.machine import process_cpu_ns

PAGE: Final = 4096
SLAB_BYTES: Final = 64 << 20
WITHIN_S: Final = 60.0
REPETITIONS: Final = 5
UNDER_WAY: Final = (1, 16)


@dataclass(frozen=True, slots=True)
class PageCost:
    """One kind of request."""

    what: str
    under_way: int
    cpu_us: Spread
    """Of the daemon, per page."""
    p50_us: Spread
    """From request to reply; with several under way that is mostly waiting for those before."""
    pages_per_s: Spread


class Client:
    """Requests for single pages on one connection."""

    def __init__(self, opened: socket.socket, pid: int) -> None:
        self._file = opened.makefile("rb", buffering=1 << 20)
        self._socket = opened
        self._pid = pid
        self._content = random.Random(1).randbytes(PAGE)

    def run(self, kind: Command, pages: int, under_way: int, seed: int) -> tuple[float, float, float]:
        """The daemon's CPU time in us per page, median latency in us, pages per second."""
        generator, content = random.Random(seed), self._content if kind is Command.WRITE else b""
        began_ns, began_cpu_ns = time.monotonic_ns(), process_cpu_ns(self._pid)
        sent_ns: list[int] = []
        latencies_us: list[float] = []
        for number in range(pages + under_way):
            if number >= under_way:
                self._receive(kind, number - under_way)
                latencies_us.append((time.monotonic_ns() - sent_ns[number - under_way]) / 1e3)
            if number < pages:
                sent_ns.append(time.monotonic_ns())
                offset = generator.randrange(SLAB_BYTES // PAGE) * PAGE
                self._socket.sendall(nbd.request(kind, number, offset, PAGE) + content)
        elapsed_s = (time.monotonic_ns() - began_ns) / 1e9
        cpu_us = (process_cpu_ns(self._pid) - began_cpu_ns) / 1e3 / pages
        return cpu_us, percentiles(latencies_us)["p50"], pages / elapsed_s

    def _receive(self, kind: Command, cookie: int) -> None:
        reply = self._file.read(nbd.SIMPLE_REPLY.size + (PAGE if kind is Command.READ else 0))
        assert nbd.SIMPLE_REPLY.unpack_from(reply) == (nbd.SIMPLE_REPLY_MAGIC, 0, cookie)


def measure_pages(pages: int) -> list[PageCost]:
    """Reads and writes, one and several under way."""
    command = [sys.executable, "-m", "services.memory.process", str(os.getpid()), "127.0.0.1:0", str(SLAB_BYTES), "0"]
    daemon = AnsweringChild(command)
    try:
        address = daemon.ask(within_s=WITHIN_S)["address"]
        name = daemon.ask(json.dumps({"command": "take", "bytes": SLAB_BYTES, "owner": "bench"}), WITHIN_S)["name"]
        connection = connect(address, name, WITHIN_S)
        with connection.socket:
            client = Client(connection.socket, daemon.process.pid)
            found = []
            for kind in (Command.WRITE, Command.READ):
                for under_way in UNDER_WAY:
                    runs = [client.run(kind, pages, under_way, seed) for seed in range(REPETITIONS + 1)][1:]
                    found.append(PageCost(kind.name.lower(), under_way, *map(Spread.of, zip(*runs, strict=True))))
            return found
    finally:
        daemon.close(WITHIN_S)


def page_table(costs: list[PageCost]) -> str:
    """For people."""
    lines = [f"{'a page':<10}{'under way':>10}{'daemon, CPU us':>22}{'p50, us':>22}{'pages per s':>28}"]
    lines += [
        f"{c.what:<10}{c.under_way:>10}{c.cpu_us.text(1):>22}{c.p50_us.text(0):>22}{c.pages_per_s.text(0):>28}"
        for c in costs
    ]
    return "\n".join(lines)
