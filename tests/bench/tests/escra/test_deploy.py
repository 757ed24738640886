"""What deploying an application orders from the engine, against a recorded one."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError, NotFound

from tests.bench.escra.apps.application import Application, Container, Request, Site
from tests.bench.escra.deploy import BENCH_LABEL, OWNER_LABEL, Deployment, Engine, deploy


class _App(Application):
    name = "small"
    containers = (
        Container("front", ("serve",), {"/etc/serve.conf": "listen 80;"}),
        Container("base", ("keep",), environment={"SIZE": "3"}, user="keeper"),
    )
    entry = "front"

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals

    def request(self, rng: random.Random, sequence: int) -> Request:
        return Request("GET", "/")

    async def reset(self, site: Site) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise ConnectionRefusedError("base is being started again")


class FakeClient:
    """As much of `docker.APIClient` as a deployment uses; it keeps what is there and what was ordered."""

    def __init__(self) -> None:
        self.present: dict[str, dict[str, Any]] = {}
        self.network_names: dict[str, dict[str, Any]] = {}
        self.started: list[str] = []
        self.taken_subnets: set[str] = set()
        self.exit_codes: dict[str, int] = {}
        self.closed = False

    def containers(self, *, all: bool, filters: dict[str, str]) -> list[dict[str, Any]]:  # noqa: A002 - docker's name
        assert all
        return [{"Id": key, **row} for key, row in self.present.items() if filters["label"] in row["Labels"]]

    def networks(self, *, filters: dict[str, str]) -> list[dict[str, Any]]:
        return [{"Id": key, **row} for key, row in self.network_names.items() if filters["label"] in row["Labels"]]

    def create_network(self, name: str, *, driver: str, ipam: Any, labels: dict[str, str]) -> None:
        assert driver == "bridge"
        subnet = ipam["Config"][0]["Subnet"]
        if subnet in self.taken_subnets:
            raise APIError("Pool overlaps with other one on this address space")
        self.network_names[name] = {"Labels": labels, "Subnet": subnet}

    def remove_network(self, key: str) -> None:
        del self.network_names[key]

    def create_host_config(self, **named: Any) -> dict[str, Any]:
        return named

    def create_endpoint_config(self, **named: Any) -> dict[str, Any]:
        return named

    def create_networking_config(self, endpoints: dict[str, Any]) -> dict[str, Any]:
        return endpoints

    def create_container(self, image: str, command: list[str], *, name: str, **named: Any) -> dict[str, str]:
        self.present[f"id-{name}"] = {"Labels": named["labels"], "image": image, "command": command, **named}
        return {"Id": f"id-{name}"}

    def logs(self, container_id: str, tail: int) -> bytes:
        return f"{tail} lines of {container_id}".encode()

    def start(self, container_id: str) -> None:
        self.started.append(container_id)

    def wait(self, container_id: str, timeout: float) -> None:
        assert container_id in self.started
        assert timeout > 0

    def inspect_container(self, container_id: str) -> dict[str, Any]:
        state = {"ExitCode": self.exit_codes.get(container_id, 0), "OOMKilled": container_id in self.exit_codes}
        return {"State": state, "RestartCount": 2}

    def remove_container(self, container_id: str, *, force: bool, v: bool) -> None:
        assert force
        assert v
        if container_id not in self.present:
            raise NotFound("gone")
        del self.present[container_id]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


async def _deployed(client: FakeClient, name: str | None = None, app: _App | None = None) -> Deployment:
    engine = Engine(client, threads=2)  # type: ignore[arg-type]
    return await deploy(app or _App(), name, engine)


def _mounted(mount: str) -> str | None:
    file = Path(mount.partition(":")[0])
    return file.read_text(encoding="utf-8") if file.exists() else None


async def test_containers_carry_labels_addresses_and_files(client: FakeClient) -> None:
    deployment = await _deployed(client, "tuned")
    assert deployment.address == ("10.213.0.10", 80)
    assert deployment.names == {
        "front": "id-turnbuckle-bench-tuned-front",
        "base": "id-turnbuckle-bench-tuned-base",
    }
    assert sorted(client.started) == sorted(deployment.names.values())
    front, base = (client.present[deployment.names[name]] for name in ("front", "base"))
    assert front["labels"]["turnbuckle.app"] == "tuned"
    assert front["labels"]["turnbuckle.name"] == "front"
    assert front["networking_config"] == {"turnbuckle-bench-tuned": {"ipv4_address": "10.213.0.10"}}
    assert front["host_config"]["extra_hosts"] == {"front": "10.213.0.10", "base": "10.213.0.11"}
    [mount] = [bind for bind in front["host_config"]["binds"] if bind.endswith(":/etc/serve.conf:ro")]
    assert _mounted(mount) == "listen 80;"
    assert base["user"] == "keeper"
    assert base["environment"] == {"SIZE": "3"}
    assert await deployment.restarts() == {"front": 2, "base": 2}
    await deployment.stop()
    assert _mounted(mount) is None


async def test_nothing_is_left_after_stop(client: FakeClient) -> None:
    deployment = await _deployed(client)
    await deployment.stop()
    assert (client.present, client.network_names, client.closed) == ({}, {}, True)


async def test_a_used_address_range_is_passed_over(client: FakeClient) -> None:
    client.taken_subnets = {"10.213.0.0/24", "10.213.1.0/24"}
    deployment = await _deployed(client)
    assert deployment.address == ("10.213.2.10", 80)
    await deployment.stop()


async def test_left_overs_of_the_application_and_of_dead_runs_go_others_stay(client: FakeClient) -> None:
    """The owner 2 ** 30 cannot live: process numbers end at 2 ** 22."""
    mine, dead = str(os.getpid()), str(2**30)
    client.present = {
        "same": {"Labels": {BENCH_LABEL: "small", OWNER_LABEL: mine}},
        "dead": {"Labels": {BENCH_LABEL: "other", OWNER_LABEL: dead}},
        "alive": {"Labels": {BENCH_LABEL: "other", OWNER_LABEL: mine}},
        "foreign": {"Labels": {"turnbuckle.app": "small"}},
    }
    client.network_names = {"dead-net": {"Labels": {BENCH_LABEL: "other", OWNER_LABEL: dead}}}
    deployment = await _deployed(client)
    await deployment.stop()
    assert sorted(client.present) == ["alive", "foreign"]
    assert client.network_names == {}


async def test_a_failed_start_leaves_nothing(client: FakeClient) -> None:
    def refuse(container_id: str) -> None:
        raise APIError(f"cannot start {container_id}")

    client.start = refuse  # type: ignore[method-assign]
    with pytest.raises(APIError):
        await _deployed(client)
    assert (client.present, client.network_names) == ({}, {})


async def test_short_lived_containers_end_and_are_removed(client: FakeClient) -> None:
    deployment = await _deployed(client)
    client.exit_codes["id-turnbuckle-bench-small-two"] = 137
    workers = (Container("one", ("work",)), Container("two", ("work",)))
    endings = await deployment.run_to_end(workers, 10.0)
    assert [(endings[name].exit_code, endings[name].oom_killed) for name in ("one", "two")] == [(0, False), (137, True)]
    assert all(ending.ended_s >= ending.started_s for ending in endings.values())
    assert sorted(client.present) == sorted(deployment.names.values())
    await deployment.stop()


async def test_reset_waits_for_a_server_that_is_being_started_again(client: FakeClient) -> None:
    app = _App(refusals=1)
    deployment = await _deployed(client, app=app)
    await deployment.reset()
    assert app.refusals == -1
    await deployment.stop()


async def test_reset_that_cannot_succeed_says_why(client: FakeClient) -> None:
    deployment = await _deployed(client, app=_App(refusals=9))
    with pytest.raises(TimeoutError, match="base is being started again"):
        await deployment.reset(deadline_s=-1.0)
    await deployment.stop()
