"""Who has seen the reply subjects of some requests can answer those, and no others."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
from nats.aio.msg import Msg

from schemas.codec import encode
from schemas.queries import StateReply, StateRequest
from schemas.services.allocator import ALLOCATOR_STATE
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions

_TOKEN_CHARACTERS = 22
"""Of base64url: 128 bits."""
REPLY = StateReply(epoch=1, steps=1, superseded=False, replica="r", apps=())


@pytest.fixture
async def buses() -> AsyncIterator[tuple[NatsBus, NatsBus]]:
    async with EmbeddedNats() as server:
        options = BusOptions(servers=(server.url,), connect_deadline_s=10.0)
        asker, responder = await NatsBus.connect(options), await NatsBus.connect(options)
        yield asker, responder
        await asker.close(2)
        await responder.close(2)


def _shared(one: str, other: str) -> int:
    """Characters in which two tokens begin alike."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=True)))


async def test_reply_subjects_do_not_follow_from_each_other(buses: tuple[NatsBus, NatsBus]) -> None:
    """Of requests, and of an inbox."""
    asker, responder = buses
    seen: list[str] = []

    async def answer(message: Msg) -> None:
        seen.append(message.reply)
        await responder.connection.publish(seen[-1], encode(REPLY))

    await responder.connection.subscribe("tb.cmd.>", cb=answer)
    await responder.connection.flush()
    for _ in range(20):
        await asker.request(ALLOCATOR_STATE.template.subject("tb"), StateRequest(), timeout_s=5)
    tokens = [subject.rsplit(".", 1)[1] for subject in [*seen, asker.connection.new_inbox()]]

    assert len(tokens) == 21
    assert all(len(token) == _TOKEN_CHARACTERS for token in tokens)
    # Of 210 pairs of random tokens, one shares 6 characters in a run of 300 million.
    assert max(_shared(*pair) for pair in itertools.combinations(tokens, 2)) < 6
