"""`services._runtime.task_cancellation`: tasks that do not listen at once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from services._runtime.task_cancellation import cancel_all, uninterrupted


async def _deaf(times: int) -> int:
    """Swallow so many cancels."""
    heard = 0
    while heard < times:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard += 1
    await asyncio.Event().wait()
    return heard


@pytest.mark.parametrize("times", [0, 1, 3])
async def test_a_task_that_loses_cancels_is_ended_all_the_same(times: int) -> None:
    task = asyncio.ensure_future(_deaf(times))
    await asyncio.sleep(0)
    assert await cancel_all([task]) == set()
    assert task.cancelled()


async def test_a_task_that_never_listens_is_given_up_and_named() -> None:
    deaf, ready = asyncio.ensure_future(_deaf(1_000)), asyncio.ensure_future(_deaf(0))
    await asyncio.sleep(0)
    assert await cancel_all([deaf, ready], 0.05) == {deaf}
    assert ready.cancelled()
    while not deaf.done():
        deaf.cancel()
        await asyncio.sleep(0)


async def test_a_task_that_clears_up_is_left_alone_for_as_long_as_it_may() -> None:
    cleared = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)
            cleared.set()

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    assert await cancel_all([task], within_s=30, again_s=5) == set()
    assert cleared.is_set()


async def test_nothing_to_cancel_returns_at_once() -> None:
    done = asyncio.ensure_future(asyncio.sleep(0, "kept"))
    await done
    assert await cancel_all([]) == set()
    assert await cancel_all([done]) == set()
    assert done.result() == "kept"


async def test_a_call_in_a_thread_is_waited_for_however_often_it_is_cancelled() -> None:
    may_end, done = threading.Event(), list[str]()

    def work(what: str) -> None:
        may_end.wait(60)
        done.append(what)

    task = asyncio.ensure_future(uninterrupted(work, "made"))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["made"]


async def test_a_call_in_a_thread_gives_its_result_or_its_error() -> None:
    assert await uninterrupted(int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await uninterrupted(int, "x")
