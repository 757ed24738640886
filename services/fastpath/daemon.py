"""The hot process: ``python -m services.fastpath.daemon CONTROL BEATS``, started by the service only.

Both arguments are descriptors. Standard library only, so that it starts within some hundredths of a second and nothing
of the bus, of logging or of asyncio can hold it up: a thread beside the event loop would wait for the interpreter lock,
which a thread of ordinary priority holds for as long as the scheduler leaves it aside.
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
from services.fastpath.control import LONGEST, ControlLink
from services.fastpath.loop import FastPathLoop

_MCL_CURRENT_AND_FUTURE: Final = 3


def become_urgent(priority: int) -> str | None:
    """SCHED_RR, memory locked, not to be killed for others' memory. Returns what was refused, or None."""
    libc = ctypes.CDLL(None, use_errno=True)
    refused = None
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-900", encoding="ascii")
    if priority:
        try:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(priority))
        except OSError as error:
            refused = f"real-time priority {priority}: {error.strerror}"
    if libc.mlockall(_MCL_CURRENT_AND_FUTURE):
        refused = refused or f"locked memory: {os.strerror(ctypes.get_errno())}"
    return refused


def main(arguments: list[str]) -> None:
    """Run with the descriptors of the control socket, which the configuration comes from first, and of the beats."""
    end = socket.socket(fileno=int(arguments[0]))
    beats = int(arguments[1])
    os.set_inheritable(end.fileno(), False)  # noqa: FBT003 - its only parameter
    os.set_inheritable(beats, False)  # noqa: FBT003 - as above
    os.set_blocking(beats, False)
    config = Config.parse(end.recv(LONGEST))
    loop = FastPathLoop(config, ControlLink(end), beats)
    refused = become_urgent(config.realtime_priority)
    if refused is not None:
        loop.warn("realtime_priority_denied", refused)
    # What there is now stays; what comes is freed by reference counts. No pause for a search in between.
    gc.collect()
    gc.freeze()
    gc.disable()
    loop.run()


if __name__ == "__main__":
    main(sys.argv[1:])
