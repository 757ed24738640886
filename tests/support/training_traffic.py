"""A training job's traffic: ``sink ADDRESS PORT [BURST_BYTES]``, ``job JSON``, ``bulk ADDRESS PORT SECONDS NAME``.

A job computes (in slices, as who is paused must not go on), sends the parts of an iteration, and waits until all has
arrived: one line of JSON an iteration.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from typing import Any

_SLICE_S = 0.01
_BETWEEN_PARTS_S = 0.015
_NAME_BYTES = 16
_SEND_BUFFER_FORCE = 32
"""SO_SNDBUFFORCE of socket(7), for root, as that of SO_RCVBUFFORCE."""
_RECEIVE_BUFFER_FORCE = 33
_LARGE_BYTES = 8 << 20
_SMALL_BYTES = 1 << 16
_BETWEEN_BURSTS_S = 0.1


def sink(address: str, port: int, burst_bytes: int = 0) -> None:
    """Take what one connection brings; each message is its length and as many bytes, answered by one byte.

    In bursts of so many bytes: with a small window it takes none for a while after each; the messages mean nothing.
    """
    with socket.create_server((address, port)) as server:
        server.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, _SMALL_BYTES if burst_bytes else _LARGE_BYTES)
        tell("listening")
        connection, _ = server.accept()
    buffer = bytearray(burst_bytes or 1 << 18)
    while burst_bytes and connection.recv_into(buffer, burst_bytes, socket.MSG_WAITALL):
        time.sleep(_BETWEEN_BURSTS_S)
    with connection:
        while head := connection.recv(8, socket.MSG_WAITALL):
            left = int.from_bytes(head, "big")
            while left:
                left -= connection.recv_into(buffer, min(left, len(buffer)))
            connection.sendall(b"k")


def job(address: str, port: int, parts: list[int], compute_s: float, iterations: int, **options: Any) -> None:
    """All iterations of a job."""
    with socket.socket() as connection:
        if name := options.get("congestion_control"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        connection.connect((address, port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        compute(max(0.0, options.get("start_s", 0.0) - time.time()))
        changes: list[int] = []
        signal.signal(signal.SIGUSR1, lambda number, _: changes.append(number))
        for _ in range(iterations):
            parts = options["changed"] if changes else parts
            begin_s = time.time()
            compute(compute_s)
            sending_s = time.time()
            for part in parts:
                if part is not parts[0]:
                    time.sleep(_BETWEEN_PARTS_S)
                connection.sendall(part.to_bytes(8, "big") + bytes(part))
            for _ in parts:
                connection.recv(1)
            used = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES).partition(b"\0")[0]
            line = {"begin_s": begin_s, "sending_s": sending_s, "end_s": time.time()}
            tell(json.dumps(line | {"congestion_control": used.decode()}))


def tell(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def compute(seconds: float) -> None:
    """Spend time."""
    for _ in range(round(seconds / _SLICE_S)):
        time.sleep(_SLICE_S)


def bulk(address: str, port: int, seconds: float, congestion_control: str) -> None:
    """Send without a pause: the buffer holds more than this process may be kept from the processor for."""
    sent, block = 0, (1 << 20).to_bytes(8, "big") + bytes(1 << 20)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, _SEND_BUFFER_FORCE, _LARGE_BYTES)
        if congestion_control:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
        connection.connect((address, port))
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            connection.sendall(block)
            sent += len(block)
        used = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES).partition(b"\0")[0]
    tell(f"{sent} {used.decode()}")


if __name__ == "__main__":
    if sys.argv[1] == "sink":
        sink(sys.argv[2], *map(int, sys.argv[3:]))
    elif sys.argv[1] == "bulk":
        bulk(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
    else:
        job(**json.loads(sys.argv[2]))
