"""Which host and which discoveries an agent works with, by its settings."""

from __future__ import annotations

import json
from typing import Any, Protocol

from pydantic import ValidationError

from services._runtime.app import UnusableSettingsError
from services._runtime.cgroupfs import CgroupUnavailableError, can_manage, detect
from services._runtime.clock import Clock
from services._runtime.load_profile import Scenario
from services.agent.adapters.cgroups import open_host
from services.agent.adapters.managed import ManagedDiscovery
from services.agent.adapters.simulated import SimulatedApp, SimulatedHost
from services.agent.ports import UNLIMITED, Discovery, Host
from services.agent.settings import AgentSettings


class CountedHost(Host, Protocol):
    """A host that counts what was written."""

    @property
    def no_op_writes(self) -> int:
        """Writes of a value that the kernel was known to hold."""


def build_host(settings: AgentSettings, clock: Clock) -> tuple[CountedHost, dict[str, Discovery]]:
    """The host and its discoveries by maker.

    Raises:
        UnusableSettingsError: control groups cannot be written, or the scenario file cannot be read.
    """
    if settings.host == "simulated":
        host = SimulatedHost(
            _read_scenario(settings), cpu_count=settings.simulated_cpus, node=settings.node, clock=clock.monotonic
        )
        return host, {"simulated": host}
    try:
        layout = detect()
    except CgroupUnavailableError as error:
        raise UnusableSettingsError(f"{error}; or set TURNBUCKLE_AGENT__HOST=simulated") from error
    if (reason := can_manage(layout)) is not None:
        raise UnusableSettingsError(f"{reason}; or set TURNBUCKLE_AGENT__HOST=simulated")
    discoveries: dict[str, Discovery] = {"exec": ManagedDiscovery(layout, settings.managed_root)}
    if settings.docker == "auto":
        from services.agent.adapters.docker_engine import DockerDiscovery  # noqa: PLC0415 - 0.2 s that `off` saves

        discoveries["docker"] = DockerDiscovery(settings.docker_url)
    return open_host(layout), discoveries


def _read_scenario(settings: AgentSettings) -> list[SimulatedApp]:
    path = settings.scenario_file
    if path is None:
        return []
    try:
        entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        return [
            SimulatedApp(
                entry["app"],
                Scenario.model_validate(entry["scenario"]),
                entry.get("quota_us", UNLIMITED),
                entry.get("limit_bytes", UNLIMITED),
            )
            for entry in entries
        ]
    except (OSError, ValueError, TypeError, KeyError, ValidationError) as error:
        raise UnusableSettingsError(f"TURNBUCKLE_AGENT__SCENARIO_FILE: {path} cannot be used: {error}") from error
