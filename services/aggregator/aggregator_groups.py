"""Control groups of aggregators: this host's agent finds them by their names, as containers of their application."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from schemas.aggregations import APPLICATION
from schemas.apps import PERIOD_US
from services._host.cgroupfs import (
    MANAGED_ID_LENGTH,
    CgroupLayout,
    CgroupUnavailableError,
    ManagedCgroup,
    can_manage,
    detect,
    managed_directory,
)
from services._runtime.telemetry.logging import Logger
from services.aggregator.aggregator_process import AggregatorProcess
from services.aggregator.settings import AggregatorSettings


def usable_layout(settings: AggregatorSettings) -> CgroupLayout | str:
    """This host's control groups, or why aggregators get none."""
    if settings.control_groups == "off":
        return "switched off by TURNBUCKLE_AGGREGATOR__CONTROL_GROUPS"
    try:
        layout = detect()
    except CgroupUnavailableError as error:
        return str(error)
    return can_manage(layout) or layout


@dataclass(frozen=True, slots=True)
class GroupedProcesses:
    """Starts each aggregator in a control group of its own, with a core until the agent decides."""

    layout: CgroupLayout
    managed_root: str
    log: Logger

    async def start(self, host: str, memory_bytes: int) -> AggregatorProcess:
        """As `AggregatorProcess.start`."""
        return await AggregatorProcess.start(host, memory_bytes, self._enter)

    def _enter(self, pid: int) -> ManagedCgroup | None:
        """A new group with this process in it; None where that cannot be: jobs go before limits.

        Once the process is there: an agent removes groups that have none for some seconds.
        """
        number = secrets.token_hex(MANAGED_ID_LENGTH // 2)
        group = ManagedCgroup(self.layout, managed_directory(APPLICATION, "aggregator", number, self.managed_root))
        try:
            group.make(quota_us=PERIOD_US)
            if group.add_process(pid):
                return group
            reason = "the process has ended, or its group was removed"
        except (OSError, CgroupUnavailableError) as error:
            reason = str(error)
        group.remove()
        self.log.warning("aggregator_without_group", reason=reason, effect="its CPU is limited as the service's is")
        return None
