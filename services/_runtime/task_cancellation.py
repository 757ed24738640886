"""Task cancellation that is repeated until the tasks have ended, and calls in threads that none cuts short.

A single cancel can be lost: `asyncio.wait_for` of Python 3.11 swallows one that arrives just when the awaited future
ends (cpython#86296).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeVar

_AGAIN_S: Final = 0.1
Answer = TypeVar("Answer")


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


async def uninterrupted(work: Callable[..., Answer], *arguments: object) -> Answer:
    """Run it in a thread; returns its result, and raises its error. It blocks.

    However often the calling task is cancelled, that waits for its end, so that what it has made is known; then
    CancelledError is raised in place of its result.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # retrieved: asyncio would log it as never retrieved
        raise
