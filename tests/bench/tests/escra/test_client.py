"""The open-loop client against real servers of this process that stall, lie, break and speak in chunks."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.bench.escra.load.http1 import AnswerError, AnswerReader, encode_request
from tests.bench.escra.load.sender import Exchange, OpenLoop, Outcome, Sent
from tests.support.replying_server import server

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def send(address: tuple[str, int], times: np.ndarray, timeout_s: float = 5.0) -> Sent:
    def make(number: int) -> Exchange:
        return Exchange(
            encode_request("x", "GET", f"/{number}", b""), lambda status, body: (status, body) == (200, b"ok")
        )

    loop = OpenLoop(address, times, timeout_s)
    return await loop.run(make, asyncio.get_running_loop().time() + 0.01)


async def test_every_request_is_answered_on_few_connections():
    peers = set()

    async def reply(_: int, writer: asyncio.StreamWriter) -> None:
        peers.add(writer.get_extra_info("peername"))
        writer.write(_OK)

    async with server(reply) as address:
        sent = await send(address, np.arange(100) * 0.002)
    assert (sent.outcome == Outcome.OK).all()
    assert np.median(sent.latency_s) < 1
    assert len(peers) < 100


async def test_a_stall_counts_for_all_that_were_to_be_sent_meanwhile():
    """Request 10 of 40, one each 10 ms, begins a stall of 0.2 s; a closed loop would show it once."""
    free = asyncio.Event()

    async def reply(number: int, writer: asyncio.StreamWriter) -> None:
        if number == 10:
            asyncio.get_running_loop().call_later(0.2, free.set)
        if number >= 10:
            await free.wait()
        writer.write(_OK)

    async with server(reply) as address:
        sent = await send(address, np.arange(40) * 0.01)
    # Request 10 + k was meant 10 k ms after it: it has waited 200 - 10 k ms, and those after 30 nothing.
    for k in (0, 5, 10, 15):
        assert sent.latency_s[10 + k] >= 0.199 - 0.01 * k - 0.02
        assert sent.latency_s[10 + k] < 1
    assert (sent.lag_s < 1.5).all()
    assert np.median(sent.latency_s[32:]) < 1


async def test_a_time_out_counts_from_the_intended_moment():
    never = asyncio.Event()

    async def reply(number: int, writer: asyncio.StreamWriter) -> None:
        if number == 0:
            await never.wait()
        writer.write(_OK)

    async with server(reply) as address:
        sent = await send(address, np.array([0.0, 0.05]), timeout_s=1.0)  # room for the one that is answered
        never.set()
    assert sent.outcome.tolist() == [Outcome.TIMED_OUT, Outcome.OK]
    assert 1.0 <= sent.latency_s[0] < 10


async def test_a_wrong_answer_is_told_from_a_right_one():
    async def reply(number: int, writer: asyncio.StreamWriter) -> None:
        if number == 1:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nok")
        elif number == 2:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad")
        else:
            writer.write(_OK)

    async with server(reply) as address:
        sent = await send(address, np.array([0.0, 0.05, 0.1]))
    assert sent.outcome.tolist() == [Outcome.OK, Outcome.WRONG, Outcome.WRONG]


async def test_a_kept_connection_that_the_server_closes_is_replaced():
    async def reply(number: int, writer: asyncio.StreamWriter) -> None:
        if number == 1:
            writer.close()
        else:
            writer.write(_OK)

    async with server(reply) as address:
        sent = await send(address, np.array([0.0, 0.05, 0.1]))
    assert (sent.outcome == Outcome.OK).all()


async def test_a_fresh_connection_that_breaks_is_a_failure():
    async def reply(_: int, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with server(reply) as address:
        sent = await send(address, np.array([0.0]))
    assert sent.outcome.tolist() == [Outcome.FAILED]


async def test_who_waits_for_a_connection_gets_one_when_another_breaks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.bench.escra.load.sender.MOST_CONNECTIONS", 1)

    async def reply(number: int, writer: asyncio.StreamWriter) -> None:
        if number == 0:
            writer.close()
        else:
            writer.write(_OK)

    async with server(reply) as address:
        sent = await send(address, np.array([0.0, 0.0]))
    assert sorted(sent.outcome.tolist()) == [Outcome.OK, Outcome.FAILED]


async def test_nobody_listens():
    async with server(lambda *_: asyncio.Future()) as address:
        pass
    sent = await send(address, np.array([0.0, 0.01]))
    assert (sent.outcome == Outcome.FAILED).all()


async def test_an_answer_that_closes_is_counted_and_the_connection_given_up():
    async def reply(_: int, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")

    async with server(reply) as address:
        sent = await send(address, np.array([0.0, 0.05, 0.1]))
    assert (sent.outcome == Outcome.OK).all()


def test_an_answer_may_come_byte_by_byte_and_in_chunks():
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n"
    reader = AnswerReader()
    answers = [reader.feed(whole[index : index + 1]) for index in range(len(whole))]
    assert answers[:-1] == [None] * (len(whole) - 1)
    assert answers[-1] is not None
    assert (answers[-1].status, answers[-1].body, answers[-1].keeps) == (200, b"abcde", True)
    assert not reader.begun


@pytest.mark.parametrize("data", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 70_000])
def test_what_is_no_answer_is_refused(data):
    with pytest.raises(AnswerError):
        AnswerReader().feed(data)


def test_a_request_says_how_long_its_body_is():
    assert encode_request("h:1", "POST", "/a", b"xy") == b"POST /a HTTP/1.1\r\nHost: h:1\r\nContent-Length: 2\r\n\r\nxy"
    assert b"Content-Length" not in encode_request("h:1", "GET", "/a", b"")
