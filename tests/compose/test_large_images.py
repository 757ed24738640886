"""The images of collector and advisor, as those of the others in tests/system/test_compose_images.py."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.support import compose_lab
from tests.support.image_files import secrets_in_image

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]
SERVICES = ("collector", "advisor")
MOST_BYTES = {"collector": 320 * 10**6, "advisor": 1_150 * 10**6}


@pytest.fixture(scope="module", autouse=True)
def _images() -> None:
    compose_lab.require("debootstrap")
    compose_lab.make_images()


def tag(service: str) -> str:
    return f"turnbuckle-{service}:0.1.0"


@pytest.mark.parametrize("service", SERVICES)
def test_they_are_no_larger_than_said(service):
    [about] = json.loads(subprocess.run(["docker", "inspect", tag(service)], capture_output=True, check=True).stdout)
    assert about["Size"] < MOST_BYTES[service]
    assert about["Config"]["User"] == "10001:10001"


def test_the_advisors_alone_holds_pytorch():
    code = "import importlib.metadata as m; print(*(d.metadata['Name'].lower() for d in m.distributions()))"
    there = {
        service: set(
            subprocess.run(
                ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python", tag(service), "-c", code],
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout.split()
        )
        for service in SERVICES
    }
    assert {"torch", "scikit-learn", "lightgbm"} <= there["advisor"]
    assert {"google-cloud-aiplatform", "google-cloud-bigquery"} <= there["collector"]
    assert not there["collector"] & {"torch", "scikit-learn", "lightgbm", "duckdb", "docker"}
    assert not there["advisor"] & {"google-cloud-aiplatform", "docker"}


@pytest.mark.parametrize(("profiles", "more"), [("", set()), ("advisor", {"advisor"})])
def test_up_makes_the_advisor_with_its_profile_only(profiles, more):
    """And builds no other image with PyTorch: an installation's time and space are the advisor's."""
    compose_lab.require("docker-compose")
    project = compose_lab.ComposeProject()
    project.environment["COMPOSE_PROFILES"] = profiles
    try:
        project.run("up", "--no-start", "--no-build")
        made = {name for name in (*compose_lab.RUNNING, *SERVICES) if project.containers(name, every=True)}
        assert made == {*compose_lab.RUNNING, "collector"} | more
        project.run("down", "--timeout", "1")
        assert not [name for name in made if project.containers(name, every=True)]
    finally:
        project.environment["COMPOSE_PROFILES"] = "advisor"
        project.remove()


def test_no_secret_is_in_a_layer_its_history_or_its_settings():
    scanned: set[str] = set()
    for service in SERVICES:
        assert secrets_in_image(tag(service), scanned) == []
