"""The watchdog: empties our table while the daemon is silent, or once it is dead. Outlives it by a moment.

It reads a byte per tenth of a second from its standard input. When that stays silent, overrides would hide FRR's routes
for as long as the silence lasts: so they go, rule first. When it ends, the daemon has died: they go, and so do we. It
holds the daemon's lock meanwhile, through an inherited descriptor, so that a successor begins after us.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from services._host.netlink.attributes import NetlinkError
from services.fastpath.kernel import FastPathKernel
from services.fastpath.values import Ownership

BYE: Final = b"q"
_AGAIN_S: Final = 0.02
"""After a flush that failed."""
_ATTEMPTS: Final = 50


def watch(beats: int, silence_s: float, kernel: FastPathKernel) -> None:
    """Until the daemon says that it has cleared up itself, or is dead.

    Raises:
        OSError, NetlinkError: the table could not be emptied, at many attempts.
    """
    poll = select.poll()
    poll.register(beats, select.POLLIN)
    flushed = False
    while True:
        if not poll.poll(silence_s * 1000):
            if not flushed:
                _flush(kernel)
            flushed = True  # a daemon that is still cannot fill it again
            continue
        flushed = False
        said = os.read(beats, 4096)
        if not said:
            _flush(kernel)
            return
        if said.endswith(BYE):
            return


def _flush(kernel: FastPathKernel) -> None:
    for attempt in range(_ATTEMPTS):
        try:
            found = kernel.clear()
        except (OSError, NetlinkError):
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_AGAIN_S)
        else:
            print(f"watchdog: the daemon is silent or dead: {found} overrides deleted", file=sys.stderr)  # noqa: T201
            return


def main(arguments: list[str]) -> None:
    """Run with: namespace (``-``: this one), table, priority of the rule, silence (seconds), real-time priority."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-900", encoding="ascii")
    netns, table, priority, silence_s, realtime = arguments
    if int(realtime):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(int(realtime)))
    with FastPathKernel(None if netns == "-" else netns, Ownership(int(table), int(priority))) as kernel:
        watch(sys.stdin.fileno(), float(silence_s), kernel)


if __name__ == "__main__":
    main(sys.argv[1:])
