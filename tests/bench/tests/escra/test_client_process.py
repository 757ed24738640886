"""The load client as the runner uses it: a process that takes orders."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tests.bench.escra.apps.registry import APPLICATIONS
from tests.bench.escra.load.arrivals import Load
from tests.bench.escra.load.client import Order, run_order
from tests.bench.escra.load.sender import Outcome
from tests.bench.escra.processes import Child, ProcessError
from tests.support.replying_server import server

_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


def order_to(host: str, port: int, out: Path, kind: str = "fixed") -> Order:
    load = Load(kind, 50.0, 0.2, seed=3)  # type: ignore[arg-type]
    return Order(load, host, port, request_seed=4, timeout_s=1.0, traces="nowhere", out=str(out))


def test_an_order_survives_its_json(tmp_path: Path):
    order = order_to("h", 1, tmp_path / "a.npz")
    assert Order.from_json(json.dumps(asdict(order))) == order


async def test_the_rows_are_written_and_counted(tmp_path: Path):
    async def reply(_: int, writer: asyncio.StreamWriter) -> None:
        writer.write(_NOT_FOUND)

    begun: list[int] = []
    async with server(reply) as (host, port):
        done = await run_order(APPLICATIONS["shop"], order_to(host, port, tmp_path / "a.npz"), begun.append)
    # 50 per second for 0.2 s; the shop's answers are never "404".
    assert (done["requests"], done["wrong"], done["ok"]) == (10, 10, 0)
    assert len(begun) == 1
    with np.load(tmp_path / "a.npz") as rows:
        assert rows["outcome"].tolist() == [Outcome.WRONG] * 10
        assert len(rows["kind_names"]) >= 1


async def test_the_process_answers_says_what_is_wrong_and_ends(tmp_path: Path):
    log = tmp_path / "client.log"
    client = await Child.start("client", ("tests.bench.escra.load.client", "--app", "shop"), {}, log)
    try:
        assert await client.hear(30.0) == {"ready": True}
        client.tell(asdict(order_to("127.0.0.1", 1, tmp_path / "a.npz", kind="bursty")))
        with pytest.raises(ProcessError, match="BENCH_TRACES"):
            await client.hear(30.0)
        assert client.cpu_ns() > 0
    finally:
        await client.stop()
    with pytest.raises(ProcessError, match="client ended"):
        client.check()


async def test_a_process_that_dies_is_told_with_its_last_words(tmp_path: Path):
    client = await Child.start("client", ("tests.bench.escra.load.client", "--app", "nothing"), {}, tmp_path / "log")
    with pytest.raises(ProcessError, match="invalid choice"):
        await client.hear(30.0)
    await client.stop()
