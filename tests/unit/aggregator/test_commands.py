"""Commands to an aggregator's process, and what it answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services._jobs.aggregation_frames import Header, PushHeader, RefusedHeader
from services.aggregator.hosted_job import HostedJob, JobSpec
from services.aggregator.process import Commands
from services.aggregator.range_state import OptimizerSpec
from services.aggregator.shard import Shard

HOST = {
    "command": "host",
    "job": "job",
    "ranks": 2,
    "optimizer": {"kind": "sgd", "lr": 0.1},
    "worker_key": "ab" * 32,
    "aggregator_key": "cd" * 32,
}
ADD = {"command": "add", "job": "job", "range": 0, "values": 10, "version": 1}


async def answer(commands: Commands, fields: Any) -> dict[str, Any]:
    return await commands.answer(json.dumps(fields).encode())


async def test_a_job_from_its_beginning_to_its_end() -> None:
    commands = Commands(Shard(1 << 20))

    for fields in (HOST, ADD, {"command": "drop", "job": "job"}):
        assert await answer(commands, fields) == {}
    assert await answer(commands, {"command": "loads"}) == {"loads": [], "finished": {}}


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        (HOST, "job job is here"),
        (HOST | {"job": "next", "worker_key": "short"}, "worker_key: String should match pattern"),
        (HOST | {"job": "next", "optimizer": {"kind": "lamb", "lr": 1}}, "optimizer.kind: Input should be 'sgd'"),
        (HOST | {"job": "next", "ranks": 0}, "ranks: Input should be greater than or equal to 1"),
        (ADD, "range 0 of job is known here as version 1"),
        (ADD | {"range": 1, "values": 1 << 30}, "bytes may be needed with range 1 of job, of 1048576"),
        (ADD | {"job": "none"}, "job none is not here"),
        ({"command": "drop", "job": "none"}, "job none is not here"),
        ({"command": "move", "job": "job", "range": 0, "version": 1, "address": "a:1"}, "not before version 1"),
        ({"command": "move", "job": "job", "range": 0, "version": 2, "address": "a"}, "'a' is not HOST:PORT"),
        ({"command": "move", "job": "job", "range": 0, "version": 2, "address": "a" * 256 + ":1"}, "address: String"),
        ({"command": "move", "job": "job", "range": 0, "version": 2, "address": "a" * 64 + ":1"}, "was not taken by a"),
        (ADD | {"range": 1, "version": 1 << 53}, "version: Input should be less than"),
        ({"command": "sleep"}, "not a command of host, add, move, drop, loads"),
        ({"job": "job"}, "not a command of host, add, move, drop, loads"),
        ([1], "not a command of host, add, move, drop, loads"),
    ],
)
async def test_what_cannot_be_done_is_refused(fields: Any, refused: str) -> None:
    commands = Commands(Shard(1 << 20))
    for first in (HOST, ADD):
        await answer(commands, first)

    assert refused in (await answer(commands, fields))["refused"]


async def test_a_move_that_is_refused_leaves_the_range_where_it_is() -> None:
    """Its address would not fit into an answer to a worker."""
    shard = Shard(1 << 20)
    commands = Commands(shard)
    move = {"command": "move", "job": "job", "range": 0, "version": 2, "address": "a" * 256 + ":1"}
    for fields in (HOST, ADD, move):
        await answer(commands, fields)

    again = await answer(commands, ADD | {"version": 3, "moving": True})
    assert again == {"refused": "range 0 of job is known here as version 1"}


class Peer:
    """A worker's connection that keeps its answers."""

    def __init__(self) -> None:
        self.answers: list[Header] = []

    def answer(self, header: Header, content: bytes = b"") -> None:
        assert not content
        self.answers.append(header)

    def abort(self) -> None:
        """Never."""
        raise AssertionError


def test_a_refusal_to_a_job_of_the_longest_name_is_told_too() -> None:
    name, peer = "j" * 255, Peer()
    hosted = HostedJob(JobSpec(name, 1, OptimizerSpec(kind="sgd", lr=0.1)), "127.0.0.1:1", lambda: 0, lambda: 0)
    hosted.push(peer, 0, PushHeader(range=5, step=0, version=1), None)

    (refused,) = peer.answers
    assert isinstance(refused, RefusedHeader)
    assert refused.reason == name
