"""The data-plane process: ``python -m services.fastpath.daemon CONTROL BEATS``, started by the service only.

Both arguments are descriptors. Standard library only, so that it starts within some 10 ms and nothing of the
bus, of logging or of asyncio delays it: a thread beside the event loop would wait for the interpreter lock, which a
thread of ordinary priority holds while it is not scheduled.
"""

from __future__ import annotations

import ctypes
import gc
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from services.fastpath.config import Config
from services.fastpath.control import MAX_MESSAGE_BYTES, ControlLink
from services.fastpath.loop import FastPathLoop

_MCL_CURRENT_AND_FUTURE: Final = 3


def raise_priority(priority: int) -> str | None:
    """Set SCHED_RR, lock memory, lower the OOM score. Returns what was denied, or None."""
    libc = ctypes.CDLL(None, use_errno=True)
    denied = None
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-900", encoding="ascii")
    if priority:
        try:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(priority))
        except OSError as error:
            denied = f"real-time priority {priority}: {error.strerror}"
    if libc.mlockall(_MCL_CURRENT_AND_FUTURE):
        denied = denied or f"locked memory: {os.strerror(ctypes.get_errno())}"
    return denied


def main(arguments: list[str]) -> None:
    """Run with the descriptors of the control socket, which first delivers the configuration, and of the heartbeats."""
    control = socket.socket(fileno=int(arguments[0]))
    heartbeats = int(arguments[1])
    os.set_inheritable(control.fileno(), False)  # noqa: FBT003 - its only parameter
    os.set_inheritable(heartbeats, False)  # noqa: FBT003 - as above
    os.set_blocking(heartbeats, False)
    config = Config.parse(control.recv(MAX_MESSAGE_BYTES))
    loop = FastPathLoop(config, ControlLink(control), heartbeats)
    denied = raise_priority(config.realtime_priority)
    if denied is not None:
        loop.warn("realtime_priority_denied", denied)
    # Objects are freed by reference counts from here on: no pauses for garbage collection.
    gc.collect()
    gc.freeze()
    gc.disable()
    loop.run()


if __name__ == "__main__":
    main(sys.argv[1:])
