"""Task cancellation that is repeated until the tasks have ended: a single cancel can be lost.

`asyncio.wait_for` of Python 3.11 swallows a cancel that arrives just when the awaited future ends (cpython#86296).
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
    """Cancel tasks repeatedly until they have ended.

    Args:
        tasks: those to cancel; ones that are done already are ignored.
        within_s: timeout in seconds.
        again_s: seconds between two cancels; a task whose cleanup takes longer is cancelled in its cleanup.

    Returns:
        The tasks that still run after the timeout.
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
