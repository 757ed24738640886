"""The traffic of a training job without its work: compute, then send some bytes to the next worker, again and again.

As a job: ``turnbuckle jobs submit --workers 2 -- python3 docs/examples/jobs/traffic.py --bytes 6750000``. By hand, in
two namespaces of ``turnbuckle lab up dumbbell``: with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets
them. Needs no package. Each worker prints a JSON line per iteration; times are seconds since the epoch.

Compute is many sleeps of 10 ms: a single long one would go on while the job is paused, and work would not.
``--stream`` sends without a pause instead, as a bulk flow beside does.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

SLICE_S = 0.01
CONNECT_S = 60.0
CHUNK_BYTES = 1 << 18
STREAM_BYTES = 1_250_000
"""Of each line of ``--stream``."""


class Place(NamedTuple):
    """This worker among the others."""

    rank: int
    workers: int
    master: tuple[str, int]


class Ring:
    """Connections to the next worker and from the one before."""

    def __init__(self, place: Place) -> None:
        self._listener = socket.create_server(("", 0))
        port = self._listener.getsockname()[1]
        following = _meet_as_master(place, port) if place.rank == 0 else _meet(place, port)
        self._next = _connect(following)
        self._next.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._before, _ = self._listener.accept()
        self._free = memoryview(bytearray(CHUNK_BYTES))

    @property
    def congestion_control(self) -> str:
        """Of what this worker sends."""
        name = self._next.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        return name.split(b"\0")[0].decode()

    def exchange(self, sent: int, received: int) -> None:
        """Send so many bytes on and take as many from before, until all have arrived on both sides."""
        taking = threading.Thread(target=self._take, args=(received,), daemon=True)
        taking.start()
        if sent:
            self._next.sendall(bytes(sent))
            _receive(self._next, 1)
        taking.join()

    def pour(self, seconds: float) -> None:
        """Send on without a pause for so long, and end the stream."""
        end_s, chunk = time.monotonic() + seconds, bytes(CHUNK_BYTES)
        while time.monotonic() < end_s:
            self._next.sendall(chunk)
        self._next.shutdown(socket.SHUT_WR)
        self._before.recv(1)  # until the other one has ended

    def arrivals(self) -> Iterator[tuple[float, float, int]]:
        """Each `STREAM_BYTES` that have arrived from before: from when, until when, how many."""
        begin_s, size = time.time(), 0
        while got := self._before.recv_into(self._free):
            size += got
            if size >= STREAM_BYTES:
                end_s = time.time()
                yield begin_s, end_s, size
                begin_s, size = end_s, 0

    def _take(self, count: int) -> None:
        if not count:
            return
        left = count
        while left:
            got = self._before.recv_into(self._free, min(left, CHUNK_BYTES))
            if not got:
                os._exit(1)  # the worker before has ended, and this one waits for it in another thread
            left -= got
        self._before.sendall(b"k")


def _receive(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = connection.recv(count - len(found))
        if not part:
            raise SystemExit("another worker has ended")
        found += part
    return found


def _connect(address: tuple[str, int]) -> socket.socket:
    deadline_s = time.monotonic() + CONNECT_S
    while True:
        try:
            return socket.create_connection(address, timeout=None)
        except ConnectionRefusedError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def _meet_as_master(place: Place, port: int) -> tuple[str, int]:
    """Tell every worker where the next one listens; returns where worker 1 does."""
    if place.workers == 1:
        return place.master[0], port
    addresses, callers = {0: (place.master[0], port)}, {}
    with socket.create_server(("", place.master[1]), backlog=place.workers) as server:
        while len(addresses) < place.workers:
            caller, (host, _) = server.accept()
            rank, at = json.loads(_line(caller))
            addresses[rank], callers[rank] = (host, at), caller
        for rank, caller in callers.items():
            caller.sendall(json.dumps(addresses[(rank + 1) % place.workers]).encode() + b"\n")
            caller.close()
    return addresses[1]


def _meet(place: Place, port: int) -> tuple[str, int]:
    with _connect(place.master) as master:
        master.sendall(json.dumps([place.rank, port]).encode() + b"\n")
        host, at = json.loads(_line(master))
    return host, at


def _line(connection: socket.socket) -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        found += _receive(connection, 1)
    return found


def compute(seconds: float) -> None:
    """As long as computing takes, in slices."""
    for _ in range(round(seconds / SLICE_S)):
        time.sleep(SLICE_S)


def wait_until(begin_s: float) -> None:
    """Until a moment, seconds since the epoch."""
    while (left_s := begin_s - time.time()) > 0:
        time.sleep(min(left_s, SLICE_S))


def train(ring: Ring, place: Place, options: argparse.Namespace) -> None:
    """All iterations."""
    cc = ring.congestion_control
    wait_until(options.begin_at)
    for number in range(options.iterations):
        changed = options.change_at is not None and number >= options.change_at
        size = options.bytes_after if changed else options.bytes
        sent, received = _shares(size, place, one_way=options.one_way)
        begin_s = time.time()
        compute(options.compute_after if changed else options.compute)
        sending_s = time.time()
        ring.exchange(sent, received)
        end_s = time.time()
        line = {"iteration": number, "begin_s": begin_s, "sending_s": sending_s, "end_s": end_s, "bytes": sent}
        print(json.dumps({**line, "congestion_control": cc}), flush=True)


def _shares(size: int, place: Place, *, one_way: bool) -> tuple[int, int]:
    """What this worker sends and takes; one way: nothing goes from the last one back to the first."""
    last = place.workers - 1
    return (0 if one_way and place.rank == last else size, 0 if one_way and place.rank == 0 else size)


def stream(ring: Ring, place: Place, options: argparse.Namespace) -> None:
    """Send from the first worker to the next without a pause, until the time is over; that one prints what arrives."""
    wait_until(options.begin_at)
    if place.rank == 0:
        print(json.dumps({"congestion_control": ring.congestion_control}), flush=True)
        ring.pour(options.seconds)
        return
    for begin_s, end_s, size in ring.arrivals():
        line = {"sending_s": begin_s, "end_s": end_s, "bytes": size}
        print(json.dumps(line), flush=True)


def main() -> None:
    """Meet the other workers, and send."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bytes", type=int, default=6_750_000, help="of each iteration, from each worker")
    parser.add_argument("--compute", type=float, default=0.7, metavar="SECONDS", help="before it sends")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--begin-at", type=float, default=0.0, metavar="EPOCH_S", help="with the first iteration")
    parser.add_argument("--one-way", action="store_true", help="nothing goes from the last worker to the first")
    parser.add_argument("--change-at", type=int, metavar="ITERATION", help="from then on as --bytes-after says")
    parser.add_argument("--bytes-after", type=int, default=13_500_000)
    parser.add_argument("--compute-after", type=float, default=0.7, metavar="SECONDS")
    parser.add_argument("--stream", action="store_true", help="no iterations: send for --seconds without a pause")
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    environment = os.environ
    master = (environment.get("MASTER_ADDR", "127.0.0.1"), int(environment.get("MASTER_PORT", "29500")))
    place = Place(int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1")), master)
    ring = Ring(place)
    (stream if options.stream else train)(ring, place, options)


if __name__ == "__main__":
    main()
