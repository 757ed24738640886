"""The client packages of docs/examples/clients, on their own: decoders, subjects, examples against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

import msgpack
import nats
import numpy as np
import pytest

from schemas.cfs import CfsBatch
from schemas.codec import MESSAGE_TYPES, TYPE_KEY, VERSION_KEY, encode
from schemas.limits import LimitsApplied, RowStatus
from schemas.message import ColumnType, Message
from schemas.registry import CHANNELS, ENDPOINTS
from schemas.roles import Role
from scripts.asyncapi.examples import EXAMPLES
from services._runtime.bus.embedded_server import EmbeddedNats
from tests.support.authority import make_ca
from tests.support.secured_nats import NODES, SecuredNats

CLIENTS = Path(__file__).parents[2] / "docs" / "examples" / "clients"
WITHIN_S = 120.0

PYTHON_DRIVER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from turnbuckle_client import subjects
from turnbuckle_client.decode import decode, rows
for line in sys.stdin:
    task = json.loads(line)
    if "data" in task:
        message = decode(bytes.fromhex(task["data"]))
        answer = [message, list(rows(message)) if "containers" in message else None]
    else:
        answer = getattr(subjects, task["python"])(*task["ids"])
    print(json.dumps(answer))
assert not {"schemas", "services", "numpy"} & set(sys.modules)
"""

JAVASCRIPT_DRIVER = """
import { createInterface } from "node:readline";
const { decode, rows } = await import(process.argv[1] + "/decode.js");
const subjects = await import(process.argv[1] + "/subjects.js");
const shown = (_, value) => typeof value === "bigint" ? { integer: String(value) } : value;
for await (const line of createInterface({ input: process.stdin })) {
  const task = JSON.parse(line);
  let answer;
  if ("data" in task) {
    const message = decode(Buffer.from(task.data, "hex"));
    answer = [message, "containers" in message ? rows(message) : null];
  } else answer = subjects[task.javascript](...task.ids);
  console.log(JSON.stringify(answer, shown));
}
"""

EXTREME = CfsBatch.build(
    ["web-é", "db"],
    {
        name: [0, 1] if kind == np.uint8 else [np.iinfo(kind).min, np.iinfo(kind).max]
        for name, kind in CfsBatch.column_types.items()
    },
    app="shop ✓",
    node="gpu-01.example",
    incarnation=(1 << 62) - 1,
    report_seq=1 << 53,
    time_ns=(1 << 53) - 1,
    period_us=100_000,
    host_cpus=65_536,
)


def drivers() -> list[Any]:
    """Commands that read tasks as JSON lines; node is needed by the second only."""
    needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
    javascript = ["node", "--input-type=module", "-e", JAVASCRIPT_DRIVER, CLIENTS.as_uri() + "/javascript"]
    return [
        pytest.param([sys.executable, "-I", "-c", PYTHON_DRIVER, str(CLIENTS / "python")], id="python"),
        pytest.param(javascript, id="javascript", marks=[needs_node, pytest.mark.host]),
    ]


def answers(driver: list[str], tasks: list[dict[str, Any]]) -> list[Any]:
    """What a package answers to each of the tasks."""
    asked = "".join(json.dumps(task) + "\n" for task in tasks)
    done = subprocess.run(driver, input=asked, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line, object_hook=_number) for line in done.stdout.splitlines()]


def _number(fields: dict[str, Any]) -> Any:
    if fields.keys() == {"integer"}:
        assert abs(int(fields["integer"])) > (1 << 53) - 1, "a bigint only where a number is not exact"
        return int(fields["integer"])
    return fields


def expected(message: Message) -> dict[str, Any]:
    """Type, version and fields as a client shall see them."""
    return {TYPE_KEY: message.type_name, VERSION_KEY: message.schema_version, **_fields(message)}


def _fields(message: Message) -> dict[str, Any]:
    if message.sparse:
        return {name: _plain(value) for name, value in message.model_dump(exclude_defaults=True).items()}
    codes = {
        name: found.code
        for name, field in type(message).model_fields.items()
        for found in field.metadata
        if isinstance(found, ColumnType)
    }
    return {
        name: np.frombuffer(value, dtype=codes[name]).tolist() if name in codes else _plain(value)
        for name, value in message
    }


def _plain(value: Any) -> Any:
    match value:
        case Message():
            return _fields(value)
        case tuple() | list():
            return [_plain(each) for each in value]
        case dict():
            return {_plain(key): _plain(each) for key, each in value.items()}
        case Enum():
            return value.value
        case date():
            return value.isoformat()
        case _:
            return value


async def published(messages: list[Message]) -> list[bytes]:
    """The bytes that a subscriber of a real server receives for these messages."""
    async with EmbeddedNats() as server:
        connection = await nats.connect(server.url)
        subscription = await connection.subscribe("tb.test")
        for message in messages:
            await connection.publish("tb.test", encode(message))
        received = [(await subscription.next_msg(timeout=WITHIN_S)).data for _ in messages]
        await connection.close()
    return received


@pytest.mark.parametrize("driver", drivers())
async def test_every_message_type_is_decoded_to_the_same_values(driver) -> None:
    messages = [*EXAMPLES, EXTREME]
    assert {type(message) for message in messages} >= set(MESSAGE_TYPES.values())

    tasks = [{"data": data.hex()} for data in await published(messages)]

    for message, (decoded, rows) in zip(messages, answers(driver, tasks), strict=True):
        assert decoded == expected(message)
        assert rows == (message.rows() if hasattr(message, "rows") and "containers" in decoded else None)


@pytest.mark.parametrize("driver", drivers())
async def test_what_was_applied_is_a_row_per_container(driver) -> None:
    """What a program needs: the subject, the message, its rows with their outcome."""
    outcomes = [RowStatus.APPLIED, RowStatus.FAILED]
    columns = {"quota_us": [62_000, -1], "limit_bytes": [300 << 20, -1], "status": outcomes}
    ids = {"incarnation": 1, "report_seq": 2, "epoch": 4, "seq": 978, "time_ns": 1 << 60}
    message = LimitsApplied.build(["web-1", "db-1"], columns, app="shop", node="gpu-01.example", **ids)
    [data] = await published([message])
    subject = {"python": "limits_applied", "javascript": "limitsApplied", "ids": ["shop"]}

    pattern, (decoded, rows) = answers(driver, [subject, {"data": data.hex()}])

    assert pattern == "tb.obs.applied.shop.*"
    assert (decoded["app"], decoded["node"]) == ("shop", "gpu-01.example")
    assert {name: decoded[name] for name in ids} == ids
    assert rows == [
        {"container": "web-1", "quota_us": 62_000, "limit_bytes": 314_572_800, "status": 0},
        {"container": "db-1", "quota_us": -1, "limit_bytes": -1, "status": 6},
    ]


@pytest.mark.parametrize("driver", drivers())
@pytest.mark.parametrize("cut", [1, 8])
def test_a_column_that_does_not_fit_the_containers_is_refused(driver, cut) -> None:
    """A byte too few is no whole number, a number too few is no table."""
    fields = msgpack.unpackb(encode(EXTREME))
    fields["quota_us"] = fields["quota_us"][:-cut]
    task = json.dumps({"data": msgpack.packb(fields).hex()}) + "\n"

    done = subprocess.run(driver, input=task, capture_output=True, text=True, timeout=WITHIN_S, check=False)

    assert done.returncode == 1
    assert "column" in done.stderr


@pytest.mark.parametrize("driver", drivers())
def test_subjects_are_those_of_the_contract(driver) -> None:
    channels = [(one.name, one.template) for one in CHANNELS]
    channels += [(one.request.__name__, one.template) for one in ENDPOINTS]
    odd = ["gpu-01.exämple", "a b*", "host.1-4f2a9c-1"]
    tasks = [
        {
            "python": re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(),
            "javascript": name[0].lower() + name[1:],
            "ids": odd[: len(template.parameters)],
        }
        for name, template in channels
    ]

    found = answers(driver, tasks)

    assert found == [
        str(template.subject("tb", **dict(zip(template.parameters, odd, strict=False)))) for _, template in channels
    ]


@pytest.mark.parametrize("driver", drivers())
def test_an_observation_without_ids_is_a_pattern_of_all(driver) -> None:
    assert answers(driver, [{"python": "cfs_batch", "javascript": "cfsBatch", "ids": []}]) == ["tb.obs.cfs.*.*"]


def batch(node: str, throttled: list[int], throttled_us: list[int] | None = None) -> bytes:
    """A report on two containers."""
    columns = {name: [0, 0] for name in CfsBatch.column_types}
    columns |= {"throttled": throttled, "throttled_us": throttled_us or [each * 21_500 for each in throttled]}
    fields = {"incarnation": 1, "report_seq": 1, "time_ns": 1, "period_us": 100_000, "host_cpus": 4}
    return encode(CfsBatch.build(["web", "api"], columns, app="shop", node=node, **fields))


@asynccontextmanager
async def example(command: list[str], directory: Path, **variables: str) -> AsyncIterator[asyncio.StreamReader]:
    """The lines that an example prints, from its subscription on."""
    environment = os.environ | variables
    process = await asyncio.create_subprocess_exec(
        *command, cwd=directory, env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert await line_of(process.stdout) == "subscribed"
        yield process.stdout
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line_of(lines: asyncio.StreamReader) -> str:
    """The next line."""
    return (await asyncio.wait_for(lines.readline(), WITHIN_S)).decode().rstrip("\n")


@pytest.fixture(params=["python", pytest.param("javascript", marks=pytest.mark.host)])  # npm fetches a package
def program(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[str], Path]:
    """Command and directory of an example; the npm package is installed beside a copy, at the locked version."""
    if request.param == "python":
        return [sys.executable, "print_throttled.py"], CLIENTS / "python"
    directory = tmp_path / "javascript"
    shutil.copytree(CLIENTS / "javascript", directory, ignore=shutil.ignore_patterns("node_modules"))
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm")
    install = [npm, "ci", "--ignore-scripts", "--prefer-offline"]
    done = subprocess.run(install, cwd=directory, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot fetch the package nats: {done.stderr[-300:]}")
    return ["node", "print_throttled.js"], directory


async def test_the_example_prints_each_throttled_container(program) -> None:
    command, directory = program
    async with EmbeddedNats() as server, example(command, directory, NATS_URL=server.url) as lines:
        connection = await nats.connect(server.url)
        for node, throttled in (("n1", [0, 0]), ("n1", [1, 0]), ("n2", [2, 1])):
            await connection.publish(f"tb.obs.cfs.shop.{node}", batch(node, throttled))
        await connection.flush()

        printed = [await line_of(lines) for _ in range(3)]

        await connection.close()
    assert printed == ["shop n1 web 21500 us", "shop n2 web 43000 us", "shop n2 api 21500 us"]


async def test_the_example_prints_a_time_that_follows_an_early_report_and_no_line_without_one(program) -> None:
    """An early report has the count only; the sample after it has the time, and may count nothing new."""
    command, directory = program
    async with EmbeddedNats() as server, example(command, directory, NATS_URL=server.url) as lines:
        connection = await nats.connect(server.url)
        await connection.publish("tb.obs.cfs.shop.n1", batch("n1", [1, 0], [0, 0]))
        await connection.publish("tb.obs.cfs.shop.n1", batch("n1", [0, 0], [76_600, 0]))
        await connection.flush()

        assert await line_of(lines) == "shop n1 web 76600 us"

        await connection.close()


async def test_the_example_runs_with_an_observers_key(program, tmp_path) -> None:
    command, directory = program
    certificates = make_ca(tmp_path / "tls", "127.0.0.1")
    async with SecuredNats(tmp_path / "secrets", tls=certificates) as server:
        url, authority = server.url.replace("nats://", "tls://"), str(certificates / "ca.pem")
        variables = {"NATS_URL": url, "NATS_CA": authority, "NATS_NKEY": server.seed_file(Role.OBSERVER)}
        async with example(command, directory, **variables) as lines:
            tls, seed = ssl.create_default_context(cafile=authority), server.seed_file(Role.AGENT, NODES[1])
            agent = await nats.connect(url, tls=tls, nkeys_seed=seed)
            await agent.publish(f"tb.obs.cfs.shop.{NODES[1]}", batch(NODES[1], [1, 0]))
            await agent.flush()

            printed = await line_of(lines)

            await agent.close()
    assert printed == f"shop {NODES[1]} web 21500 us"
