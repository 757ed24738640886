"""Containers of a run at a real engine: streams, signals, times, limits, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, replace
from typing import Any

import docker
import pytest

from services._host.docker_containers import (
    OWNER_LABEL,
    RUN_LABEL,
    Container,
    Containers,
    ContainerSpec,
    ContainersUnavailableError,
    connect,
)
from services._host.owner import Owner
from services.cli.up.demo_docker import ensure_host_image, host_mounts

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.slow]
WITHIN_S = 60


@pytest.fixture(scope="module")
def client() -> Iterator[docker.APIClient]:
    made = docker.APIClient(version="auto", **docker.utils.kwargs_from_env())
    ensure_host_image(made)
    yield made
    made.close()


@pytest.fixture
async def containers(client: docker.APIClient) -> AsyncIterator[Containers]:
    async with asyncio.timeout(240), Containers(f"test-{os.getpid()}") as made:
        yield made


def shell(code: str, name: str = "one", **limits: Any) -> ContainerSpec:
    """A container that runs this."""
    return ContainerSpec(name, "turnbuckle-host:latest", ("/bin/sh", "-c", code), binds=tuple(host_mounts()), **limits)


async def line(container: Container) -> str:
    """The next one that it writes."""
    async with asyncio.timeout(WITHIN_S):
        return (await container.stdout.readline()).decode().strip()


async def test_lines_go_in_and_come_out_and_errors_apart(containers: Containers) -> None:
    code = "while read it; do echo got $it; echo wrong $it >&2; done; echo over"
    container = await containers.start(shell(code))
    container.stdin.write(b"a\n")
    assert await line(container) == "got a"
    container.stdin.write(b"b\nc\n")
    assert [await line(container) for _ in "bc"] == ["got b", "got c"]
    container.stdin.close()
    container.stdin.write(b"dropped\n")
    assert await line(container) == "over"

    ended = await container.wait()

    assert ended.code == 0
    assert await container.stderr.read() == b"wrong a\nwrong b\nwrong c\n"


async def test_times_are_those_of_the_engines_events(containers: Containers, client: docker.APIClient) -> None:
    begin_s = int(time.time())
    container = await containers.start(shell("read it; exit 7"))
    container.stdin.close()
    ended = await container.wait()

    assert ended.code == 7
    told = client.events(since=begin_s, until=int(time.time()) + 1, filters={"container": container.id}, decode=True)
    times_ns = {event["Action"]: event["timeNano"] for event in told}
    assert (container.started_ns, ended.time_ns) == (times_ns["start"], times_ns["die"])


async def test_signals_reach_the_first_process(containers: Containers) -> None:
    code = "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    asked, killed = [await containers.start(shell(code, name)) for name in ("asked", "killed")]
    assert [await line(asked), await line(killed)] == ["ready", "ready"]
    asked.send(signal.SIGTERM)
    killed.send(signal.SIGKILL)

    assert await line(asked) == "told"
    assert [(await one.wait()).code for one in (asked, killed)] == [3, -signal.SIGKILL]


async def test_containers_of_a_run_reach_each_other_at_their_addresses(containers: Containers) -> None:
    serve = "import socket; s = socket.create_server(('', 5000)); print('ready', flush=True); s.accept()[0].send(b'hi')"
    server = await containers.start(replace(shell("", "server"), command=(sys.executable, "-S", "-c", serve)))
    assert await line(server) == "ready"
    ask = f"import socket; print(socket.create_connection(('{server.address}', 5000)).recv(9).decode())"
    client = await containers.start(replace(shell("", "client"), command=(sys.executable, "-S", "-c", ask)))

    assert await line(client) == "hi"
    assert [(await one.wait()).code for one in (server, client)] == [0, 0]


async def test_limits_are_the_engines(containers: Containers, client: docker.APIClient) -> None:
    limited = await containers.start(shell("read it", "limited", cpu_cores=0.25, memory_bytes=64 << 20))
    free = await containers.start(shell("read it", "free"))
    host = client.inspect_container(limited.id)["HostConfig"]
    assert (host["NanoCpus"], host["Memory"], host["MemorySwap"]) == (250_000_000, 64 << 20, 64 << 20)
    host = client.inspect_container(free.id)["HostConfig"]
    assert (host["NanoCpus"], host["Memory"]) == (0, 0)


async def test_nothing_is_left_at_the_end_also_of_what_still_runs(client: docker.APIClient) -> None:
    async with Containers("test-end") as containers:
        await containers.start(shell("sleep 1000"))
        labelled = {"label": f"{RUN_LABEL}={containers.name}"}
        assert len(client.containers(all=True, filters=labelled)) == 1
        assert len(client.networks(filters=labelled)) == 1

    assert client.containers(all=True, filters=labelled) == []
    assert client.networks(filters=labelled) == []


async def test_what_a_dead_owner_left_is_removed_by_the_next_run_and_a_live_ones_is_not(
    client: docker.APIClient, containers: Containers
) -> None:
    mine = await containers.start(shell("read it"))
    dead = replace(Owner.this_process(), started_ticks=1)
    labels = {OWNER_LABEL: json.dumps(asdict(dead)), RUN_LABEL: "test-dead"}
    name = f"test-dead-{os.getpid()}"
    client.create_network(name, driver="bridge", labels=labels)
    host = client.create_host_config(binds=host_mounts(), network_mode=name)
    client.create_container("turnbuckle-host:latest", ["sleep", "1000"], name=name, labels=labels, host_config=host)
    client.start(name)

    async with Containers("test-next") as following:
        assert following.swept.count(name) == 2, "the container, and the network"

    assert client.inspect_container(mine.id)["State"]["Running"]
    mine.stdin.close()
    assert (await mine.wait()).code == 1, "read has come to its end"


async def test_a_refused_container_is_explained_and_leaves_nothing(
    containers: Containers, client: docker.APIClient
) -> None:
    with pytest.raises(ContainersUnavailableError, match="no image turnbuckle-none:1: docker pull"):
        await containers.start(replace(shell("true"), image="turnbuckle-none:1"))
    with pytest.raises(ContainersUnavailableError, match=r"one cannot be started: .*no-such-program"):
        await containers.start(replace(shell("true"), command=("/no-such-program",)))
    assert client.containers(all=True, filters={"label": f"{RUN_LABEL}={containers.name}"}) == []


async def test_an_end_whose_event_was_lost_is_read_from_the_containers_state(
    containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(_container_id: str) -> None:
        raise TimeoutError

    monkeypatch.setattr(containers.lifetimes, "end_of", lost)
    container = await containers.start(shell("read it; exit 4"))
    container.stdin.close()
    before_ns = time.time_ns()

    ended = await container.wait()

    assert ended.code == 4
    assert abs(ended.time_ns - before_ns) < 60 * 1_000_000_000


def test_an_engine_of_another_machine_or_none_is_refused_with_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://10.0.0.1:2375")
    with pytest.raises(ContainersUnavailableError, match="share files with this command"):
        connect()
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(ContainersUnavailableError, match="systemctl start docker"):
        connect()
