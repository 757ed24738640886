"""`turnbuckle train --elastic --workers docker`: each worker has what was planned, and nothing of them is left."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from services._host.docker_containers import OWNER_LABEL, Containers
from tests.support.cgroup_lab import wait_until
from tests.support.elastic_command import HASTE, elastic_command
from tests.support.trainer_image import trainer_image, trainer_mounts

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.slow]
LIMITS = ("--worker-cpus", "0.5", "--worker-memory", "1GiB")


@pytest.fixture(scope="module")
def client() -> Iterator[docker.APIClient]:
    made = docker.APIClient(version="auto", **docker.utils.kwargs_from_env())
    yield made
    made.close()


@pytest.fixture(scope="module")
def options(client: docker.APIClient) -> Iterator[list[str]]:
    with trainer_image(client, f"turnbuckle-host-trainer:{os.getpid()}") as image:
        mounts = [word for mount in trainer_mounts() for word in ("--mount", mount)]
        yield [*HASTE, "--workers", "docker", "--image", image, *mounts, *LIMITS]


def owned(client: docker.APIClient, pid: int) -> dict[str, dict[str, Any]]:
    """Containers of a process, by their name within the run."""
    found = client.containers(all=True, filters={"label": OWNER_LABEL})
    mine = [one for one in found if json.loads(one["Labels"][OWNER_LABEL])["pid"] == pid]
    return {one["Names"][0].split("-", 3)[-1]: one for one in mine}


def networks(client: docker.APIClient, pid: int) -> list[str]:
    """Names of networks of a process."""
    found = client.networks(filters={"label": OWNER_LABEL})
    return [one["Name"] for one in found if json.loads(one["Labels"][OWNER_LABEL])["pid"] == pid]


def test_each_worker_is_a_container_with_the_planned_limits_and_none_is_left(
    tmp_path: Path, client: docker.APIClient, options: list[str]
) -> None:
    with elastic_command(tmp_path, *options, "--usd-per-hour", "3600") as command:
        progress = command.until_workers(2)
        pid = command.process.pid
        containers = owned(client, pid)
        assert set(containers) == {"store", "worker-1", "worker-2"}
        limits = {}
        for name, container in containers.items():
            host = client.inspect_container(container["Id"])["HostConfig"]
            limits[name] = (host["NanoCpus"], host["Memory"], host["MemorySwap"])
        assert limits["worker-1"] == limits["worker-2"] == (500_000_000, 1 << 30, 1 << 30)
        assert limits["store"] == (0, 0, 0)
        assert progress["usd"] >= 2
        assert len(networks(client, pid)) == 1
        command.process.send_signal(signal.SIGTERM)
        assert command.end() == (0, "")

    assert next(event for event in command.seen if event["event"] == "result")["stopped"] is True
    assert next(event for event in command.seen if event["event"] == "pauses")["changes"]["count"] >= 1
    assert (owned(client, pid), networks(client, pid)) == ({}, [])
    assert [path.name for path in (tmp_path / "saved").iterdir()], "written through the mount"


async def test_where_the_command_is_killed_workers_end_by_themselves_and_the_next_run_removes_them(
    tmp_path: Path, client: docker.APIClient, options: list[str]
) -> None:
    with elastic_command(tmp_path, *options) as command:
        command.until(lambda event: event["event"] == "join")
        pid = command.process.pid
        # What is still being loaded finds neither orders nor a store.
        wait_until(lambda: owned(client, pid).get("worker-2", {}).get("State") == "running", what="a second worker")
        command.process.kill()
        command.process.wait(60)
    wait_until(
        lambda: all(one["State"] == "exited" for one in owned(client, pid).values()),
        within_s=120,
        what="the end of workers whose orders have ended",
    )
    assert set(owned(client, pid)) == {"store", "worker-1", "worker-2"}

    async with Containers("test") as containers:
        assert len(containers.swept) >= 2

    assert (owned(client, pid), networks(client, pid)) == ({}, [])


def test_an_image_that_is_not_there_is_named(tmp_path: Path, client: docker.APIClient) -> None:
    absent = ["--workers", "docker", "--image", "turnbuckle-no-such-image:1", *LIMITS]
    with elastic_command(tmp_path, *absent) as command:
        code, said = command.end()
        pid = command.process.pid

    assert code == 69
    assert "no image turnbuckle-no-such-image:1: docker pull or docker build it first" in said
    assert (owned(client, pid), networks(client, pid)) == ({}, [])
