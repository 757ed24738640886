"""The loop on which waiting takes no time."""

from __future__ import annotations

import asyncio
import time

import pytest

from services._runtime.clock import SystemClock
from tests.support.deadline import until

pytestmark = pytest.mark.virtual_time


async def test_an_hour_passes_at_once_on_every_clock() -> None:
    began_s, clock = time.perf_counter(), SystemClock()
    before = time.monotonic(), time.time_ns(), asyncio.get_running_loop().time()
    await clock.sleep_until(clock.monotonic() + 3600.0)

    assert 3600.0 <= time.monotonic() - before[0] < 3660.0
    assert 3600.0 <= (time.time_ns() - before[1]) / 1e9 < 3660.0
    assert 3600.0 <= asyncio.get_running_loop().time() - before[2] < 3660.0
    assert time.perf_counter() - began_s < 60.0


async def test_sleepers_wake_in_the_order_of_their_deadlines() -> None:
    woken: list[int] = []

    async def sleeper(seconds: int) -> None:
        await asyncio.sleep(seconds)
        woken.append(seconds)

    await asyncio.gather(*(sleeper(seconds) for seconds in (300, 100, 200)))

    assert woken == [100, 200, 300]


async def test_a_condition_that_does_not_come_fails_at_its_deadline() -> None:
    with pytest.raises(AssertionError, match="rain did not hold within 5 s"):
        await until(lambda: False, within_s=5, what="rain")


async def test_time_stands_still_while_a_thread_works() -> None:
    """Else a timeout would end before the work that it bounds has begun."""

    def work() -> str:
        for _ in range(50):
            time.sleep(0.001)
        return "done"

    async with asyncio.timeout(5.0):
        assert await asyncio.to_thread(work) == "done"


async def test_what_is_ready_comes_before_time() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\n")
        async with asyncio.timeout(5.0):
            assert await reader.readline() == b"hello\n"
        writer.close()
