"""What is in the images, and what is not."""

from __future__ import annotations

import re
import subprocess
import tarfile
from collections.abc import Iterator
from typing import IO, Any

import docker
import pytest

from tests.support import compose_lab
from tests.support.compose_lab import LIGHT, ROOT

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]
AGENT_BYTES = 200 * 10**6
SECRET = re.compile(
    rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\s+[A-Za-z0-9+/]{40}|-----BEGIN NATS|\bS[UAOCNX][A-Z2-7]{56}\b"
    rb"|\bAKIA[0-9A-Z]{16}\b|index-url *=|https?://[^/\s:@\"']+:[^/\s:@\"']+@"
)
"""Keys in PEM, NATS seeds and credentials, cloud keys, addresses of package indexes, addresses with a password."""
SECRET_NAME = re.compile(r"(?:^|/)(?:\.git|\.env|\.netrc|pip\.conf|id_[a-z0-9]+|.*\.(?:creds|nk|key|p12))$")
SECRET_VARIABLE = re.compile(r"PASS|TOKEN|SECRET|SEED|CREDENTIAL|INDEX_URL|PROXY")
PUBLISHED = re.compile(
    r"usr/(?!local/)|opt/turnbuckle/lib/python3[^/]*/site-packages/"
    r"(?!services/|schemas/|[^/]+\.dist-info/(?:direct_url|INSTALLER|RECORD))"
)
"""Debian's and libraries' own files, as everybody gets them: examples in them hold made-up keys."""


@pytest.fixture(scope="module")
def images() -> Iterator[dict[str, Any]]:
    """What the engine says of each image, by service."""
    compose_lab.require("debootstrap")
    compose_lab.make_images(*LIGHT)
    client = docker.APIClient(version="auto", **docker.utils.kwargs_from_env())
    yield {service: client.inspect_image(f"turnbuckle-{service}:0.1.0") for service in LIGHT}
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


@pytest.mark.parametrize("service", LIGHT)
def test_only_agent_and_reconciler_run_as_root(images, service):
    assert images[service]["Config"]["User"] == ("" if service in {"agent", "reconciler"} else "10001:10001")


@pytest.mark.parametrize("service", LIGHT)
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
    assert ("matplotlib" in there) == (service == "cli")


@pytest.mark.parametrize("service", ["agent", "allocator", "reconciler"])
def test_the_service_in_it_can_say_its_settings(images, service):
    settings = run_in(images[service], *images[service]["Config"]["Entrypoint"], "--print-config")
    assert "TURNBUCKLE_HEALTH_PORT=8080" in settings


def test_nothing_but_sources_is_sent_to_the_engine():
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
        names = {name for _, name, _ in _files(tag)}
    finally:
        subprocess.run(["docker", "image", "rm", tag], capture_output=True, check=True)
    sources = ("schemas/", "services/", "compose/image/")
    strangers = [
        n
        for n in names
        if not n.startswith(sources) and n not in {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    ]
    assert "services/agent/service.py" in names
    assert strangers == []
    assert not [name for name in names if SECRET_NAME.search(name)]


def test_no_secret_is_in_a_layer_its_history_or_its_settings(images):
    scanned: set[str] = set()
    for service, image in images.items():
        history = subprocess.run(
            ["docker", "history", "--no-trunc", image["Id"]], capture_output=True, check=True
        ).stdout
        assert not SECRET.search(history), service
        assert not [each for each in image["Config"]["Env"] if SECRET_VARIABLE.search(each.partition("=")[0])], service
        for layer, name, file in _files(image["Id"], scanned):
            assert not SECRET_NAME.search(name), (service, name)
            if not PUBLISHED.match(name):
                found = SECRET.search(file.read())
                assert not found, (service, layer, name, found)


def _files(image: str, scanned: set[str] | None = None) -> Iterator[tuple[str, str, IO[bytes]]]:
    """Layer, name and content of every regular file of an image; layers in `scanned` are left out, the others noted."""
    with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            for member in archive:
                if not member.name.endswith("layer.tar") or (scanned is not None and member.name in scanned):
                    continue
                if scanned is not None:
                    scanned.add(member.name)
                with tarfile.open(fileobj=archive.extractfile(member), mode="r|") as layer:
                    for file in layer:
                        if file.isfile() and (content := layer.extractfile(file)) is not None:
                            yield member.name, file.name.removeprefix("./"), content
    assert process.returncode == 0


def _plain_builder() -> dict[str, str]:
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DOCKER_BUILDKIT": "0"}
