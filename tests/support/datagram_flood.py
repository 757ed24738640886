"""One host's namespace floods another with the same datagram, as fast as a process can."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from services._host.netns import command_in

_PROGRAM = """
import socket, sys
source, target, port, payload = sys.argv[1], sys.argv[2], int(sys.argv[3]), bytes.fromhex(sys.argv[4])
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.bind((source, 0))
sender.connect((target, port))
print("begins", flush=True)
while True:
    for _ in range(1000):
        try:
            sender.send(payload)
        except OSError:
            pass
    sys.stdout.write("k")
    sys.stdout.flush()
"""


class Flood:
    """A running flood."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def alive(self) -> bool:
        """Whether it still sends."""
        return self._process.poll() is None

    def end(self) -> int:
        """Stop it; how many datagrams it has sent, in thousands rounded down."""
        self._process.kill()
        assert self._process.stdout is not None
        return 1_000 * self._process.stdout.read().count(b"k")


@contextmanager
def flooding(netns: str, source: str, target: tuple[str, int], payload: bytes) -> Iterator[Flood]:
    """From an address in a namespace to an address and port."""
    words = [sys.executable, "-S", "-P", "-c", _PROGRAM, source, target[0], str(target[1]), payload.hex()]
    with subprocess.Popen(command_in(netns, words), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begins\n"
            yield Flood(process)
        finally:
            process.kill()
