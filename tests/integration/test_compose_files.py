"""The compose files keep to the Compose Specification's schema, which compose v2 checks, and to what 1.29 knows."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from services._runtime.command.connection import CliSettings
from services._runtime.service.interpreter import installed_services
from tests.support import compose_lab
from tests.support.compose_lab import COMPOSE, ROOT

SCHEMA: dict[str, Any] = json.loads((ROOT / "tests/support/compose-spec.json").read_text(encoding="utf-8"))
"""Says itself where it is from."""
FILES = sorted(path.relative_to(COMPOSE).as_posix() for path in COMPOSE.rglob("compose*.yaml"))
SECURE = ("nats/compose.secure.yaml",)
STACKS = [
    (),
    ("compose.demo.yaml",),
    ("compose.observability.yaml",),
    ("compose.demo.yaml", "compose.observability.yaml"),
    SECURE,
    ("compose.demo.yaml", "compose.observability.yaml", *SECURE),
]
VARIABLE = re.compile(r"\$\{\w+(?::-(?P<default>[^}]*)|:\?[^}]*)?\}")


def content(name: str) -> dict[str, Any]:
    """As compose reads it where no variable is set, and a required one is something."""
    text = (COMPOSE / name).read_text(encoding="utf-8")
    return yaml.safe_load(VARIABLE.sub(lambda found: found["default"] or "", text))


def test_there_are_files():
    assert {"compose.yaml", *(name for stack in STACKS for name in stack)} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_each_file_keeps_to_the_schema_of_version_two(name):
    jsonschema.validate(content(name), SCHEMA, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    "spoiled",
    [
        {"services": {"nats": {"imagee": "nats"}}},
        {"services": {"nats": {"mem_limit": ["512m"]}}},
        {"services": {"nats": {"depends_on": {"agent": {"condition": "healthy"}}}}},
        {"volume": {}},
    ],
)
def test_the_schema_refuses_what_is_wrong(spoiled):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spoiled, SCHEMA, cls=jsonschema.Draft202012Validator)


def test_only_images_with_pytorch_and_jobs_have_to_be_asked_for():
    """Nothing that `up` starts, and builds, depends on it; tests/compose/test_large_images.py looks into the images."""
    services = content("compose.yaml")["services"]
    assert {name: settings["profiles"] for name, settings in services.items() if "profiles" in settings} == {
        "advisor": ["advisor"],
        "aggregator": ["aggregation"],
        "planner": ["jobs"],
        "runner": ["jobs"],
        "scheduler": ["jobs"],
    }
    for name in FILES:
        for service, settings in content(name)["services"].items():
            assert "advisor" not in settings.get("depends_on", ()), (name, service)


def test_the_command_works_in_a_shell_that_sets_composes_variables():
    """As compose/nats/README.md has it: `export TURNBUCKLE_NODE=...` for compose, then `turnbuckle apply`."""
    texts = [(COMPOSE / name).read_text(encoding="utf-8") for name in FILES]
    variables = {found for text in texts for found in re.findall(r"\$\{(TURNBUCKLE_[A-Z_]+)", text)}
    own = {name for name in variables if "__" in name or name == CliSettings.variable("log_level")}

    assert variables - own == CliSettings.ignored
    CliSettings.load(dict.fromkeys(variables - own, "x"))


def test_what_is_scaled_has_no_fixed_name_and_no_fixed_port():
    """NATS alone publishes ports, on the loopback; the overlay for watching does so for programs of others."""
    for name in FILES:
        for service, settings in content(name)["services"].items():
            assert "container_name" not in settings, (name, service)
            if service in installed_services():
                assert "ports" not in settings, (name, service)
            assert all(port.startswith("127.0.0.1:") for port in settings.get("ports", [])), (name, service)


def test_the_overlay_with_users_has_everybody_use_tls():
    """Nothing is sent without it where a CA file is set; and nothing is published for browsers."""
    services = content(SECURE[0])["services"]
    for name, settings in services.items():
        if name == "nats":
            assert "ports" not in settings
            continue
        assert settings["environment"]["NATS_URL"].startswith("tls://"), name
        inside = settings["environment"]["TURNBUCKLE_NATS_TLS_CA_FILE"]
        assert f"./nats/secure/tls/ca.pem:{inside}:ro" in settings["volumes"], name
        assert "server.key" not in str(settings["volumes"]), name


@pytest.mark.host  # docker-compose
@pytest.mark.slow
@pytest.mark.parametrize("overlays", STACKS, ids=lambda overlays: "+".join(Path(name).stem for name in overlays))
def test_every_compose_that_is_installed_accepts_them(overlays):
    compose_lab.require("docker-compose")
    files = [part for name in ("compose.yaml", *overlays) for part in ("-f", name)]
    environment = compose_lab.plain_environment() | {"TURNBUCKLE_NODE": "here"}
    for command in compose_lab.compose_commands():
        done = subprocess.run(
            [*command, *files, "config", "--quiet"],
            cwd=COMPOSE,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert "WARN" not in done.stderr.upper(), done.stderr
