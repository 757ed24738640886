"""What a replay makes of a stream that is not what it was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from schemas.codec import encode
from services._runtime.bus import nats_replay
from services._runtime.bus.api import BusUnavailableError, Delivery, RawMessage
from services._runtime.bus.dispatch import Dispatch
from tests.support.bus_lab import CONTAINER_STREAM, container_event, event_subject, number_of
from tests.support.deadline import until


class _NoBatches:
    """As of a server that lags behind the stream's leader."""

    def __init__(self, *_: object) -> None:
        pass

    async def open(self, _start: object) -> None:
        """Nothing to ask."""

    async def batch(self) -> list[RawMessage]:
        return []

    async def close(self) -> None:
        """Nothing to end."""


async def test_a_comparison_that_fails_after_a_reconnect_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has lost the end of its store, and another event has its sequence: it would never be handled."""
    stored, failures, seen = {1: 1}, 0, list[int]()

    async def next_stored(_bus: Any, _stream: str, begin: int) -> RawMessage | None:
        nonlocal failures
        if failures:
            failures -= 1
            raise BusUnavailableError("connection reconnecting")
        number = stored.get(begin)
        if number is None:
            return None
        return RawMessage(event_subject("tb").text, encode(container_event(number)), sequence=begin)

    async def stream_info(_stream: str) -> Any:
        return SimpleNamespace(state=SimpleNamespace(last_seq=0))

    async def handle(delivery: Delivery) -> None:
        seen.append(number_of(delivery.message))

    monkeypatch.setattr(nats_replay, "next_stored", next_stored)
    monkeypatch.setattr(nats_replay, "DirectGets", _NoBatches)
    monkeypatch.setattr(nats_replay, "FOLLOW_S", 0.001)
    bus: Any = SimpleNamespace(root="tb", dispatch=Dispatch(), subscriptions=set(), watches=set())
    bus.jetstream = SimpleNamespace(stream_info=stream_info)
    replay = nats_replay.NatsReplay(bus, CONTAINER_STREAM, handle)
    await replay.start()
    await until(lambda: seen == [1], within_s=10, what="the first")
    stored[1], failures = 2, 1
    replay.synchronise_soon()

    await until(lambda: seen == [1, 2], within_s=10, what="the event in its place")
    await replay.stop()
