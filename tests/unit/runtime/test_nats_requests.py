"""A request's reply, and the cancel of who waits for it."""

from __future__ import annotations

import asyncio

import pytest
from nats.aio.msg import Msg

from services._runtime.bus.nats_connection import Connection


async def test_a_cancel_that_comes_with_the_reply_is_not_lost() -> None:
    """Who waited went on for ever: a watch, four times a second, which its owner waited for to end."""
    connection = Connection()
    reply: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
    connection._resp_map["key"], connection._pending_subjects["key"] = reply, "tb.cmd.x"
    waiting = asyncio.ensure_future(connection.reply_to("key", 60))
    await asyncio.sleep(0)

    reply.set_result(Msg(_client=connection, data=b"x"))
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
