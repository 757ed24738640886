"""The console's hub: what a page is told, and what becomes of one that is slow."""

from __future__ import annotations

import asyncio

import msgpack
import pytest

from services.console.hub import CUT_OFF_BYTES, REMEMBERED_EVENTS, Hub, Page
from services.console.messages import console_message, frame


def messages(data: bytes) -> list[bytes]:
    """Frames as the page cuts them."""
    found = []
    while data:
        length = int.from_bytes(data[:4], "big")
        found.append(data[4 : 4 + length])
        data = data[4 + length :]
    return found


async def told(page: Page) -> list[bytes]:
    return messages(await page.take(0.0))


def test_a_frame_is_length_and_content() -> None:
    assert frame(b"abc") == b"\x00\x00\x00\x03abc"
    assert msgpack.unpackb(console_message("Removed", key="shop")) == {"type": "console.Removed", "key": "shop"}


async def test_who_joins_is_told_what_holds_and_the_newest_facts() -> None:
    hub = Hub()
    hub.broadcast(b"nobody looks")
    hub.set("apps/shop", b"old limit")
    hub.set("apps/shop", b"new limit")
    hub.set("apps/gone", b"limit")
    hub.remove("apps/gone", b"removed")
    for number in range(REMEMBERED_EVENTS + 1):
        hub.broadcast_event("oom", b"%d" % number)
    expected = [b"new limit", *(b"%d" % number for number in range(1, REMEMBERED_EVENTS + 1))]
    assert await told(hub.join()) == expected


async def test_pages_are_told_news_once() -> None:
    hub = Hub()
    page, other = hub.join(), hub.join()
    hub.set("network/gpu-01", b"state")
    hub.set("network/gpu-01", b"state")
    hub.broadcast_event("oom", b"fact")
    hub.broadcast_event("oom", b"fact")
    hub.broadcast(b"second", "tick")
    hub.remove("network/gpu-02", b"was never there")
    hub.set("network/gpu-03", b"other")
    assert await told(page) == [b"state", b"fact", b"second", b"other"]
    assert await told(other) == [b"state", b"fact", b"second", b"other"]
    assert await told(page) == []


async def test_a_slow_page_is_told_the_newest_state_and_every_fact() -> None:
    """However long it reads nothing: a state that it has not read yet is replaced, and does not count twice."""
    hub = Hub()
    page = hub.join()
    half = CUT_OFF_BYTES // 2
    for number in range(5):
        hub.set("rows/shop/n1", bytes([number]) * half)
        hub.broadcast(b"second %d" % number, "tick")
        hub.broadcast_event("oom", b"fact %d" % number)
    assert not page.behind
    facts = [b"fact %d" % number for number in range(4)]
    assert await told(page) == [*facts, bytes([4]) * half, b"second 4", b"fact 4"]


async def test_what_went_before_it_was_read_is_told_as_gone() -> None:
    hub = Hub()
    page = hub.join()
    hub.set("rows/shop/n1", b"rows")
    hub.remove("rows/shop/n1", b"gone")
    assert await told(page) == [b"gone"]


async def test_a_page_that_is_behind_with_facts_is_given_up() -> None:
    hub = Hub()
    page = hub.join()
    hub.broadcast_event("route", bytes(CUT_OFF_BYTES))
    assert page.behind
    assert await asyncio.wait_for(page.take(60.0), 60.0) == b""  # at once


async def test_a_long_past_cuts_nobody_off() -> None:
    """400 facts of 500 rules' writes each are more than a page may be behind."""
    hub = Hub()
    facts = [bytes([number]) * (CUT_OFF_BYTES // 4) for number in range(5)]
    for fact in facts:
        hub.broadcast_event("tc", fact)
    page = hub.join()
    hub.broadcast_event("oom", b"while it reads")
    assert await told(page) == [*facts, b"while it reads"]
    assert not page.behind


async def test_questions_are_asked_while_somebody_looks() -> None:
    hub = Hub()
    waiting = asyncio.ensure_future(hub.wait_for_page())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.0)
    page = hub.join()
    await asyncio.wait_for(waiting, 60.0)
    hub.leave(page)
    assert hub.pages == 0
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(hub.wait_for_page(), 0.0)
