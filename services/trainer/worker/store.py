"""The store of an elastic training, by which workers find each other: ``python -m services.trainer.worker.store HOST``.

A process of the coordinator's, which outlives any worker: it prints its port, and ends with its standard input. It
listens at HOST, an IPv4 address.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Final

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from services._runtime.command.tool_events import emit

_OWN_CLIENT: Final = "127.0.0.1"


def serve(host: str) -> None:
    """Until standard input ends.

    Raises:
        OSError: the host has no such address.
    """
    # By itself TCPStore listens at all addresses, whatever name it is given: that is for its own client only.
    listening = socket.create_server((host, 0))
    port = listening.getsockname()[1]
    store = TCPStore(_OWN_CLIENT, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    emit("store", port=store.port)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    serve(sys.argv[1])
    os._exit(0)  # without finalizing the interpreter under the store's threads
