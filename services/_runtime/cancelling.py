"""Cancel tasks until they have ended: one cancel may be lost.

`asyncio.wait_for` of Python 3.11 swallows a cancel that comes just when what it waits for ends (cpython#86296).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Any, Final

_AGAIN_S: Final = 0.1


async def cancel_all(
    tasks: Iterable[asyncio.Task[Any]], within_s: float = math.inf, again_s: float = _AGAIN_S
) -> set[asyncio.Task[Any]]:
    """Cancel tasks, again and again, and wait until they have ended.

    Args:
        tasks: to be ended; those that are done already are left alone.
        within_s: seconds after which those that still run are given up.
        again_s: seconds between two cancels: what a task does when it is cancelled must not take longer, or it is cut
            off.

    Returns:
        What still runs then.
    """
    clock = asyncio.get_running_loop().time
    running, deadline_s = {task for task in tasks if not task.done()}, clock() + within_s
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=min(again_s, max(deadline_s - clock(), 0)))
        if clock() >= deadline_s:
            break
    return running
