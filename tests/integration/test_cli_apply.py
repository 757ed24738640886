"""`turnbuckle apply` and `delete` with a real Docker Engine."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from typer.testing import CliRunner, Result

from services._runtime.bus.embedded_server import EmbeddedNats
from services.cli.main import app as main
from services.cli.up.demo_docker import ensure_host_image, host_mounts

SLEEP = ["sh", "-c", "trap 'exit 0' TERM; sleep 600 & wait"]
"""Ends at SIGTERM, which the first process of a container ignores by default."""

pytestmark = pytest.mark.docker


@pytest.fixture
def client() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture
def app(client: docker.DockerClient) -> Iterator[str]:
    name = f"t{uuid.uuid4().hex[:8]}"
    yield name
    for container in client.containers.list(all=True, filters={"label": f"turnbuckle.app={name}"}):
        container.remove(force=True, v=True)


@pytest.fixture
def server() -> Iterator[str]:
    nats = EmbeddedNats()
    asyncio.run(nats.start())
    yield nats.url
    asyncio.run(nats.stop())


def turnbuckle(server: str, *arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--server", server], env=environment)


def app_file(client: docker.DockerClient, directory: Path, app: str, containers: dict[str, Any]) -> str:
    image = ensure_host_image(client.api)
    entries = [
        {"name": name, "image": image, "command": SLEEP, "network": "none", "volumes": host_mounts(), **more}
        for name, more in containers.items()
    ]
    file = directory / "app.yaml"  # JSON is YAML
    limits = {"name": app, "cpu_limit": 1, "memory_limit": "100MiB"}
    file.write_text(json.dumps({**limits, "containers": entries}))
    return str(file)


def actions(done: Result) -> dict[str, str]:
    assert done.exit_code == 0, done.stderr
    return {step["name"]: step["action"] for step in json.loads(done.stdout)["containers"]}


def test_from_nothing_to_nothing(client: docker.DockerClient, app: str, server: str, tmp_path: Path) -> None:
    two = app_file(client, tmp_path, app, {"web": {"replicas": 2, "environment": {"A": "1"}}})

    assert actions(turnbuckle(server, "apply", two, "--dry-run", "--json")) == {"web-1": "create", "web-2": "create"}
    assert client.containers.list(all=True, filters={"label": f"turnbuckle.app={app}"}) == []
    assert actions(turnbuckle(server, "apply", two, "--json")) == {"web-1": "create", "web-2": "create"}

    container = client.containers.get(f"{app}-web-1")
    host = container.attrs["HostConfig"]

    assert container.status == "running"
    assert (host["CpuPeriod"], host["CpuQuota"]) == (100_000, 50_000)  # 1 core / 2
    assert host["Memory"] == host["MemorySwap"] == int((100 << 20) * 0.8) // 2 // 4096 * 4096
    assert host["RestartPolicy"]["Name"] == "unless-stopped"
    assert container.labels["turnbuckle.name"] == "web-1"
    assert actions(turnbuckle(server, "apply", two, "--json")) == {"web-1": "keep", "web-2": "keep"}

    client.containers.get(f"{app}-web-2").stop(timeout=0)

    assert actions(turnbuckle(server, "apply", two, "--json"))["web-2"] == "start"

    one = app_file(client, tmp_path, app, {"web": {"environment": {"A": "2"}}})

    assert actions(turnbuckle(server, "apply", one, "--json")) == {"web": "create", "web-1": "leave", "web-2": "leave"}
    assert actions(turnbuckle(server, "apply", one, "--prune", "--json"))["web-1"] == "remove"

    done = turnbuckle(server, "delete", app, "--yes", "--json")

    assert actions(done) == {"web": "remove"}
    assert client.containers.list(all=True, filters={"label": f"turnbuckle.app={app}"}) == []


def test_changed_specifications_are_replaced_and_strangers_left(
    client: docker.DockerClient, app: str, server: str, tmp_path: Path
) -> None:
    image = ensure_host_image(client.api)
    labels = {"turnbuckle.app": app}
    stranger = client.containers.create(image, SLEEP, labels=labels, volumes=host_mounts())
    turnbuckle(server, "apply", app_file(client, tmp_path, app, {"web": {}}))
    done = turnbuckle(
        server, "apply", app_file(client, tmp_path, app, {"web": {"environment": {"A": "1"}}}), "--prune", "--json"
    )

    assert actions(done) == {"web": "replace"}
    assert json.loads(done.stdout)["others"] == [stranger.name]
    assert "A=1" in client.containers.get(f"{app}-web").attrs["Config"]["Env"]

    done = turnbuckle(server, "delete", app, "--yes", "--json")

    assert json.loads(done.stdout)["others"] == [stranger.name]
    assert client.containers.get(str(stranger.id)).id == stranger.id


def test_an_image_that_cannot_be_had_is_told(
    client: docker.DockerClient, app: str, server: str, tmp_path: Path
) -> None:
    file = app_file(client, tmp_path, app, {"web": {"image": "127.0.0.1:1/no/such:image"}})
    done = turnbuckle(server, "apply", file)

    assert done.exit_code == 1
    assert "web: Docker refuses to create it" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_an_engine_the_limits_are_announced_and_exec_is_named(
    client: docker.DockerClient, app: str, server: str, tmp_path: Path
) -> None:
    file = app_file(client, tmp_path, app, {"web": {}})
    done = turnbuckle(server, "apply", file, DOCKER_HOST="unix:///nonexistent.sock")

    assert done.exit_code == 69
    assert "limits are announced" in done.stderr
    assert "turnbuckle exec" in done.stderr

    listed = json.loads(turnbuckle(server, "apps", "--json").stdout)

    assert [item["app"] for item in listed["apps"]] == [app]
