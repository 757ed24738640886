"""Requests for slabs do not keep a reading waiting, which announces evictions."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from services.memory.daemon import Daemon
from services.memory.settings import MemorySettings
from tests.support.deadline import until

OFFER = {"address": "127.0.0.1:1", "offered_bytes": 1, "free_bytes": 1, "headroom_bytes": 0, "slabs": [], "leaving": []}


class SlowChild:
    """A daemon that gives a slab once it may."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_give = threading.Event()
        self.process = SimpleNamespace(kill=self.may_give.set)

    def ask(self, line: str | None = None, within_s: float | None = None) -> Any:
        command = json.loads(line)["command"] if line is not None else "start"
        self.asked.append(command)
        if command == "take":
            assert self.may_give.wait(within_s)
            return {"name": "0" * 64}
        return OFFER

    def close(self, _within_s: float) -> None:
        self.may_give.set()


@pytest.fixture
async def daemon_and_child(monkeypatch: pytest.MonkeyPatch) -> tuple[Daemon, SlowChild]:
    child = SlowChild()
    monkeypatch.setattr("services.memory.daemon.AnsweringChild", lambda *_: child)
    daemon = Daemon(MemorySettings.load({}, offer_bytes=1 << 30, address="127.0.0.1", node="big"))
    await daemon.read()
    return daemon, child


async def test_a_reading_waits_for_one_slab_however_many_are_asked_for(
    daemon_and_child: tuple[Daemon, SlowChild],
) -> None:
    daemon, child = daemon_and_child
    takes = [asyncio.create_task(daemon.take(1 << 20, f"gpu-{number}")) for number in range(3)]
    await until(lambda: "take" in child.asked, what="the first request")
    reading = asyncio.create_task(daemon.read())
    for _ in range(10):  # it is in the row
        await asyncio.sleep(0)
    child.may_give.set()
    await asyncio.gather(reading, *takes)

    assert child.asked == ["start", "offer", "take", "offer", "take", "take"]


async def test_two_readings_start_one_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr("services.memory.daemon.AnsweringChild", lambda *_: started.append(SlowChild()) or started[-1])
    daemon = Daemon(MemorySettings.load({}, offer_bytes=1 << 30, address="127.0.0.1", node="big"))

    await asyncio.gather(daemon.read(), daemon.read())

    assert [child.asked for child in started] == [["start", "offer", "offer"]]
