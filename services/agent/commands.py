"""What the CLI uses of the agent: doctor checks, variables, the environment of its host, and its write counters."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from services.agent.doctor import check_kernel_programs, run_guard_checks
from services.agent.settings import AgentSettings

__all__ = [
    "MANAGED_ROOT_VARIABLE",
    "check_kernel_programs",
    "host_environment",
    "managed_root",
    "read_write_counts",
    "run_guard_checks",
]

MANAGED_ROOT_VARIABLE: Final = AgentSettings.variable("managed_root")
_SAMPLE: Final = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{[^}]*\})? (?P<value>\S+)", re.MULTILINE)
_WRITE_COUNTERS: Final = ("quota_writes", "memory_writes", "no_op_writes")


def managed_root() -> str:
    """The directory of `turnbuckle exec` below each controller, as the agent of this host has it."""
    return os.environ.get(MANAGED_ROOT_VARIABLE) or str(AgentSettings.model_fields["managed_root"].default)


def host_environment(*, simulated: bool, scenario_file: Path | None = None) -> dict[str, str]:
    """Variables of an agent for real control groups, or for a simulated host with its scenario."""
    values = {"host": "simulated", "docker": "off"} if simulated else {"host": "cgroup"}
    if scenario_file is not None:
        values["scenario_file"] = str(scenario_file)
    return {AgentSettings.variable(field): value for field, value in values.items()}


def read_write_counts(metrics: str) -> Mapping[str, int | None]:
    """Sums of ``..._quota_writes_total`` and its relatives in the agent's Prometheus text; None: not served."""
    sums: dict[str, int | None] = dict.fromkeys(_WRITE_COUNTERS)
    for sample in _SAMPLE.finditer(metrics):
        for name in _WRITE_COUNTERS:
            if sample["name"].removesuffix("_total").endswith(name):
                sums[name] = (sums[name] or 0) + int(float(sample["value"]))
    return sums
