"""A real Prometheus with the settings and alerts of compose/observability; only where it finds services is ours."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from services.cli.toolkit.supervisor import free_port

FOLDER: Final = Path(__file__).resolve().parents[2] / "compose" / "observability"
EVERY: Final = "1s"
WITHIN_S: Final = 90.0
NOWHERE: Final = "127.0.0.1:1"
"""Where nobody listens."""


def find_command(name: str) -> str:
    """Its path. Where it is missing the test is skipped with the reason."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs {name}: apt-get install prometheus")
    return path


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool to its end."""
    return subprocess.run([find_command("promtool"), *arguments], text=True, capture_output=True, check=False)


def _settings(directory: Path, discovered: Path, reconciler: int) -> dict[str, Any]:
    """Compose's scrape settings: names found in a file instead of DNS, all that takes time at its shortest."""
    settings: dict[str, Any] = yaml.safe_load((FOLDER / "prometheus.yaml").read_text(encoding="utf-8"))
    settings["global"] |= {"scrape_interval": EVERY, "evaluation_interval": EVERY}
    settings["rule_files"] = [str(directory / "alerts.yaml")]
    for job in settings["scrape_configs"]:
        if job.pop("dns_sd_configs", None):
            job["file_sd_configs"] = [{"files": [str(discovered)], "refresh_interval": EVERY}]
        for static in job.get("static_configs", ()):
            static["targets"] = [f"127.0.0.1:{reconciler}" if job["job_name"] == "reconciler" else NOWHERE]
    return settings


def _alerts() -> dict[str, Any]:
    alerts: dict[str, Any] = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
    for group in alerts["groups"]:
        for rule in group["rules"]:
            rule["for"] = EVERY
    return alerts


class Prometheus:
    """One server of its own directory and port."""

    def __init__(self, directory: Path) -> None:
        self.reconciler_port = free_port()
        """Where it looks for a reconciler."""
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        self._discovered = directory / "discovered.json"
        self.discover({})
        settings = directory / "prometheus.yaml"
        settings.write_text(yaml.safe_dump(_settings(directory, self._discovered, self.reconciler_port)))
        (directory / "alerts.yaml").write_text(yaml.safe_dump(_alerts()))
        self._log = directory / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    find_command("prometheus"),
                    f"--config.file={settings}",
                    f"--storage.tsdb.path={directory / 'series'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=log,
            )

    async def ready(self) -> Prometheus:
        """Wait until it answers."""

        def answers() -> bool:
            assert self._process.poll() is None, self._log.read_text(encoding="utf-8")[-2_000:]
            try:
                return self._get("/-/ready").startswith("Prometheus Server is Ready")
            except (urllib.error.URLError, ConnectionError):
                return False

        await self.until(answers, "Prometheus ready")
        return self

    def stop(self) -> None:
        """Kill it: nothing of it is kept."""
        self._process.kill()
        self._process.wait()

    def discover(self, ports: Mapping[str, int]) -> None:
        """What Docker's DNS would answer from now on: a process' port by the name of its service."""
        found = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"__meta_dns_name": name}} for name, port in ports.items()
        ]
        written = self._discovered.with_suffix(".new")
        written.write_text(json.dumps(found), encoding="utf-8")
        written.replace(self._discovered)

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series now; what it cannot parse is an error with its reason."""
        found = self.ask("/api/v1/query", query=expression)["result"]
        return [(series["metric"], float(series["value"][1])) for series in found]

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API."""
        try:
            answer = json.loads(self._get(f"{path}?{urllib.parse.urlencode(parameters)}"))
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        assert answer["status"] == "success", answer
        return answer["data"]

    def firing(self) -> dict[str, list[dict[str, Any]]]:
        """Alerts that fire now, by name."""
        alerts: dict[str, list[dict[str, Any]]] = {}
        for alert in self.ask("/api/v1/alerts")["alerts"]:
            if alert["state"] == "firing":
                alerts.setdefault(alert["labels"]["alertname"], []).append(alert)
        return alerts

    async def until(self, condition: Callable[[], Any], what: str | Callable[[], Any]) -> None:
        """Wait for something that it will find out (it looks once a second), or fail with what is the case instead."""
        deadline_s = time.monotonic() + WITHIN_S
        while not await asyncio.to_thread(condition):
            if time.monotonic() > deadline_s:
                raise AssertionError(f"not within {WITHIN_S:g} s: {what() if callable(what) else what}")
            await asyncio.sleep(0.1)

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self._url}{path}", timeout=60) as reply:
            return str(reply.read().decode())
