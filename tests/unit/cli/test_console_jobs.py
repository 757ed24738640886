"""What the console asks a scheduler: when a page asks, once for all of them, and what it says if nobody answers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgpack
import pytest

from services.console.job_queries import QUEUE_AGE_S, QUEUE_BYTES_PER_S, JobQueries
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.job_queue import FakeScheduler, large_queue

pytestmark = pytest.mark.virtual_time


def read(answer: bytes) -> dict[str, Any]:
    """A message as a page reads it."""
    fields: dict[str, Any] = msgpack.unpackb(answer)
    return fields


async def started(broker: MemoryBroker) -> FakeScheduler:
    """A scheduler on the bus."""
    scheduler = FakeScheduler(MemoryBus(broker))
    await scheduler.start()
    return scheduler


async def test_the_queue_is_asked_for_once_for_all_pages() -> None:
    broker = MemoryBroker()
    scheduler = await started(broker)
    queries = JobQueries(MemoryBus(broker))

    answers = await asyncio.gather(*(queries.queue({}) for _ in range(5)))

    assert scheduler.asked == 1
    assert len(set(answers)) == 1
    assert [job["job"] for job in read(answers[0])["jobs"]] == ["resnet", "bert", "big", "try", "bad"]


async def test_an_old_answer_is_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = MemoryBroker()
    scheduler = await started(broker)
    queries = JobQueries(MemoryBus(broker))
    now_s = 100.0
    monkeypatch.setattr("services.console.job_queries.time.monotonic", lambda: now_s)
    await queries.queue({})
    now_s += QUEUE_AGE_S - 0.1
    await queries.queue({})
    assert scheduler.asked == 1
    now_s += 0.2
    await queries.queue({})
    assert scheduler.asked == 2


async def test_a_long_answer_is_given_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it costs to ask grows with the jobs: so does the time between two questions."""
    broker = MemoryBroker()
    scheduler = await started(broker)
    scheduler.queue = lambda now_ns: large_queue(now_ns, 500)
    queries = JobQueries(MemoryBus(broker))
    now_s = 100.0
    monkeypatch.setattr("services.console.job_queries.time.monotonic", lambda: now_s)
    first = await queries.queue({})
    # Some 460 kB, of 128 KiB/s: three and a half seconds.
    age_s = len(first) / QUEUE_BYTES_PER_S
    assert 3.0 < age_s < 4.0
    now_s += age_s - 0.1
    assert await queries.queue({}) == first
    assert scheduler.asked == 1
    now_s += 0.2
    assert read(await queries.queue({}))["time_ns"] > read(first)["time_ns"]
    assert scheduler.asked == 2


async def test_without_a_scheduler_it_says_so_until_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = MemoryBroker()
    queries = JobQueries(MemoryBus(broker))
    assert read(await queries.queue({})) == {
        "type": "console.NoAnswer",
        "error": "no scheduler answers on this bus",
        "absent": True,
    }
    await started(broker)
    answered_s = time.monotonic()
    monkeypatch.setattr("services.console.job_queries.time.monotonic", lambda: answered_s + QUEUE_AGE_S)
    assert read(await queries.queue({}))["leader"] == "s1"


async def test_a_job_is_explained_or_refused() -> None:
    broker = MemoryBroker()
    await started(broker)
    queries = JobQueries(MemoryBus(broker))

    explained = read(await queries.job({"job": "bert"}))
    assert [line["what"] for line in explained["history"]] == ["submitted", "waits"]
    assert explained["spec"]["environment"] == {"TOKEN": "***"}

    for name, said in (
        ("nobody", "no job is named 'nobody'"),
        ("No Name!", "no job has such a name"),
        ("", "no job has"),
    ):
        answer = read(await queries.job({"job": name}))
        assert answer["type"] == "console.NoAnswer"
        assert said in answer["error"]
        assert answer["absent"] is False
