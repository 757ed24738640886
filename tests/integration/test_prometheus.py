"""What is in compose/observability, in a real Prometheus that asks real services: agent, allocator, reconciler."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from schemas.apps import AppSpec
from schemas.streams import APPS
from schemas.telemetry import METRICS
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.cli.toolkit.supervisor import free_port
from tests.support.prometheus_lab import FOLDER, Prometheus, promtool

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = sorted((FOLDER / "grafana" / "dashboards").glob("*.json"))
VARIABLES = {"$instance": ".*", "$__rate_interval": "5s"}
APP = "shop"
SCENARIO = [
    {
        "app": APP,
        "scenario": {
            "containers": [
                {"name": name, "phases": [{"duration_s": 1, "cpu_cores": cores, "memory_bytes": 1 << 24}]}
                for name, cores in (("web", 0.2), ("api", 0.3))
            ]
        },
    }
]
# A series for each kind of trouble, for each application that waited, or of spans that are sent somewhere: none here.
UNSEEN = {
    "turnbuckle_agent_app_memory_grants_denied_total",
    "turnbuckle_agent_app_oom_waits_total",
    "turnbuckle_bus_undecodable_messages_total",
    "turnbuckle_telemetry_exported_spans_total",
    "turnbuckle_telemetry_failed_metric_exports_total",
    "turnbuckle_telemetry_lost_spans_total",
}
UNTROUBLED = "turnbuckle_reconciler_problems"
ELSEWHERE = tuple(
    f"turnbuckle_{service}_"
    for service in (
        *("reconciler", "fast_path", "collector", "advisor", "kubeoperator", "planner", "runner", "scheduler"),
        *("slurm", "aggregator", "memory"),
    )
)
"""Not started here."""

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.host,  # prometheus, promtool
]


class Watched:
    """A server, services, and Prometheus."""

    def __init__(self, directory: Path, nats: EmbeddedNats, prometheus: Prometheus) -> None:
        self.prometheus = prometheus
        self.ports = {"agent": free_port(), "allocator": free_port()}
        self._directory = directory
        self._nats = nats
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, service: str, port: int, **variables: str) -> None:
        """As an operator would."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNBUCKLE_", "NATS_"))}
        ours = {"NATS_URL": self._nats.url, "HEALTH_PORT": str(port), "SHUTDOWN_GRACE_S": "30", **variables}
        environment = kept | {"XDG_CONFIG_HOME": "/nonexistent"} | {f"TURNBUCKLE_{k}": v for k, v in ours.items()}
        with (self._directory / f"{service}.log").open("ab") as log:
            self._processes[service] = subprocess.Popen(
                [sys.executable, "-m", f"services.{service}"], cwd=ROOT, env=environment, stdout=log, stderr=log
            )

    def stop(self, service: str, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        process = self._processes.pop(service)
        process.send_signal(number)
        return process.wait(60)

    def stop_all(self) -> None:
        """Whatever runs."""
        for service in list(self._processes):
            self.stop(service, signal.SIGKILL)
        self.prometheus.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    directory = tmp_path_factory.mktemp("watched")
    (directory / "scenario.json").write_text(json.dumps(SCENARIO), encoding="utf-8")
    async with EmbeddedNats() as nats:
        lab = Watched(directory, nats, Prometheus(directory))
        try:
            lab.start(
                "agent",
                lab.ports["agent"],
                AGENT__NODE="n1",
                AGENT__HOST="simulated",
                AGENT__SCENARIO_FILE=str(directory / "scenario.json"),
            )
            lab.start("allocator", lab.ports["allocator"])
            bus = await NatsBus.connect(BusOptions(servers=(nats.url,), connect_deadline_s=60))
            await bus.bucket(APPS).put(APP, AppSpec(name=APP, cpu_limit=1.0, memory_limit=1 << 28))
            await bus.close(2.0)
            await lab.prometheus.ready()
            lab.prometheus.discover(lab.ports)
            await lab.prometheus.until(lambda: owned(lab) == 1, "the application is owned, and that is known")
            yield lab
        finally:
            lab.stop_all()


def owned(lab: Watched) -> float:
    return sum(value for _, value in lab.prometheus.query("turnbuckle_allocator_owned_applications"))


def panels(file: Path) -> Iterator[tuple[str, str]]:
    """Metric and query of each panel, as Grafana asks."""
    for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]:
        [target] = panel["targets"]
        expression = target["expr"]
        for variable, value in VARIABLES.items():
            expression = expression.replace(variable, value)
        assert "$" not in expression
        yield panel["description"], expression


async def test_promtool_accepts_our_files(tmp_path: Path) -> None:
    # The settings name the alerts where the container has them.
    settings = (FOLDER / "prometheus.yaml").read_text(encoding="utf-8")
    moved = tmp_path / "prometheus.yaml"
    moved.write_text(settings.replace("/etc/prometheus/", f"{FOLDER}/"), encoding="utf-8")
    for arguments in (("check", "config", str(moved)), ("check", "rules", str(FOLDER / "alerts.yaml"))):
        done = promtool(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"SUCCESS: \d+ rules found", done.stdout)


async def test_every_alert_fires_and_rests_where_it_should() -> None:
    tests = FOLDER / "alerts_test.yaml"
    done = promtool("test", "rules", str(tests))
    assert done.returncode == 0, done.stdout + done.stderr
    names = set(re.findall(r"- alert: (\w+)", (FOLDER / "alerts.yaml").read_text(encoding="utf-8")))
    asserted = re.findall(r"alertname: (\w+)\n +exp_alerts:(?! \[\])", tests.read_text(encoding="utf-8"))
    assert set(asserted) == names, "each is seen firing"


async def test_every_panel_has_a_query_that_is_answered(watched: Watched) -> None:
    def missing() -> set[str]:
        asked = {metric: query for file in DASHBOARDS for metric, query in panels(file)}
        empty = {metric for metric, query in asked.items() if not watched.prometheus.query(query)}
        assert set(asked) == set(METRICS)
        return {metric for metric in empty if not metric.startswith(ELSEWHERE)}

    # A rate needs two samples, and a second lies between them.
    await watched.prometheus.until(lambda: missing() == UNSEEN, missing)
    [(labels, containers)] = watched.prometheus.query("turnbuckle_agent_containers")
    assert containers == len(SCENARIO[0]["scenario"]["containers"])  # type: ignore[index]
    assert (labels["job"], labels["service"]) == ("turnbuckle", "agent")
    ticks = "rate(turnbuckle_agent_samples_total[5s])"  # one each 100 ms
    await watched.prometheus.until(
        lambda: 5 < watched.prometheus.query(ticks)[0][1] < 15, lambda: watched.prometheus.query(ticks)
    )


async def test_what_the_dashboards_offer_to_choose_from_is_there(watched: Watched) -> None:
    for file in DASHBOARDS:
        for variable in json.loads(file.read_text(encoding="utf-8"))["templating"]["list"]:
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            assert found is not None
            values = watched.prometheus.ask(f"/api/v1/label/{found[2]}/values", **{"match[]": found[1]})
            assert set(values) == {f"127.0.0.1:{port}" for port in watched.ports.values()}


async def test_an_allocator_that_stops_is_missed_until_the_next_one(watched: Watched) -> None:
    """It ends as in compose: its address leaves DNS, and its metrics end with it."""
    loaded = watched.prometheus.ask("/api/v1/rules")["groups"]
    assert {rule["health"] for group in loaded for rule in group["rules"]} == {"ok"}
    # Nothing else is wrong but that no reconciler is where compose has one; a busy machine is slow besides.
    assert set(watched.prometheus.firing()) <= {"TurnbuckleServiceDown", "TurnbuckleStepSlow"}

    assert watched.stop("allocator") == 0
    watched.prometheus.discover({"agent": watched.ports["agent"]})
    await watched.prometheus.until(
        lambda: "TurnbuckleApplicationWithoutOwner" in watched.prometheus.firing(), "the alarm"
    )
    [alarm] = watched.prometheus.firing()["TurnbuckleApplicationWithoutOwner"]
    assert alarm["annotations"]["summary"] == "some applications have no owner"
    assert alarm["labels"]["severity"] == "critical"

    watched.start("allocator", watched.ports["allocator"])
    watched.prometheus.discover(watched.ports)
    await watched.prometheus.until(
        lambda: owned(watched) == 1 and "TurnbuckleApplicationWithoutOwner" not in watched.prometheus.firing(),
        "the alarm's end",
    )


async def test_a_service_that_hangs_is_named(watched: Watched) -> None:
    """It is still found, and does not answer."""

    def down() -> list[str]:
        alarms = watched.prometheus.firing().get("TurnbuckleServiceDown", ())
        return [alarm["annotations"]["summary"] for alarm in alarms if alarm["labels"]["service"] == "agent"]

    assert watched.stop("agent", signal.SIGKILL) == -signal.SIGKILL
    await watched.prometheus.until(down, "the alarm")
    assert down() == [f"agent at 127.0.0.1:{watched.ports['agent']} does not answer"]
    await watched.prometheus.until(lambda: "TurnbuckleAgentsMissing" in watched.prometheus.firing(), "that one, too")


@pytest.fixture
def netns() -> Iterator[str]:
    name = f"tbprom{uuid.uuid4().hex[:6]}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    yield name
    subprocess.run(["ip", "netns", "del", name], check=True)


@pytest.mark.netns
async def test_a_reconciler_in_the_hosts_network_is_found(watched: Watched, netns: str, tmp_path: Path) -> None:
    def down() -> list[dict[str, Any]]:
        alarms = watched.prometheus.firing().get("TurnbuckleServiceDown", ())
        return [alarm for alarm in alarms if alarm["labels"]["service"] == "reconciler"]

    def missing() -> list[str]:
        asked = panels(FOLDER / "grafana" / "dashboards" / "network.json")
        wanted = [one for one in asked if "_reconciler_" in one[0] and one[0] != UNTROUBLED]
        return [metric for metric, query in wanted if not watched.prometheus.query(query)]

    await watched.prometheus.until(down, "the alarm, while there is none")
    assert len(missing()) > 10
    watched.start(
        "reconciler",
        watched.prometheus.reconciler_port,
        RECONCILER__NODE="n1",
        RECONCILER__NETNS=netns,
        RECONCILER__STATE_DIRECTORY=str(tmp_path),
        RECONCILER__FRR_DIRECTORY=str(tmp_path / "no-frr"),
    )
    await watched.prometheus.until(lambda: not down() and not missing(), lambda: (down(), missing()))
    assert watched.stop("reconciler") == 0
