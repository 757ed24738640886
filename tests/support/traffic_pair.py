"""A training job's traffic between two network namespaces that a link of limited rate joins: compute, send, wait."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from services._jobs.sandbox.network import NetworkNamespace, Switch

RATE_BITS_PER_S: Final = 50_000_000
_PORT: Final = 5_000
_WORKER: Final = """
import socket, sys, time
address, port, compute_s, size = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
while True:
    try: connection = socket.create_connection((address, port)); break
    except OSError: time.sleep(0.05)
connection.sendall(size.to_bytes(8, "big"))
payload = bytes(size)
print("at work", flush=True)
while True:
    for _ in range(round(compute_s / 0.01)): time.sleep(0.01)
    connection.sendall(payload)
    connection.recv(1)
"""
"""It computes in slices of 10 ms: a long sleep would go on while the process is stopped."""
_PEER: Final = """
import socket, sys, threading
def serve(connection):
    size = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
    while len(connection.recv(size, socket.MSG_WAITALL)) == size: connection.send(b"x")
listener = socket.create_server(("", int(sys.argv[1])))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


class TrafficPair:
    """Node `near`, whose workers a runner starts, and node `far`, with who answers them."""

    def __init__(self) -> None:
        self._switch = Switch()
        self.near, self.far = NetworkNamespace.create(), NetworkNamespace.create()
        self.near_address = self._switch.plug(self.near, RATE_BITS_PER_S)
        self.far_address = self._switch.plug(self.far, RATE_BITS_PER_S)

    @property
    def netns(self) -> str:
        """The path of the near namespace, as long as this process lives."""
        return self._path(self.near)

    @staticmethod
    def _path(namespace: NetworkNamespace) -> str:
        return f"/proc/{os.getpid()}/fd/{namespace.descriptor}"

    def worker(self, compute_s: float, send_bytes: int) -> tuple[str, ...]:
        """The command of a worker on the near node."""
        code = (sys.executable, "-S", "-E", "-c", _WORKER)
        arguments = (self.far_address, str(_PORT), str(compute_s), str(send_bytes))
        return ("nsenter", f"--net={self.netns}", "--", *code, *arguments)

    @contextmanager
    def peer(self) -> Iterator[None]:
        """Answer on the far node."""
        command = ["nsenter", f"--net={self._path(self.far)}", "--", sys.executable, "-S", "-E", "-c", _PEER]
        with subprocess.Popen([*command, str(_PORT)]) as process:
            try:
                yield
            finally:
                process.kill()

    def close(self) -> None:
        """Let go of both."""
        self._switch.close()
        self.near.close()
        self.far.close()
