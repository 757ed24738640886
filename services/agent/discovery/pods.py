"""Discovery of pods: control groups show the containers, the container runtime their labels.

The directories of the kubelet are listed every second. Only a group that is not known yet leads to a question to the
runtime; so a runtime, a kubelet or an API server that is away costs nothing but newcomers (decision 0018).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Protocol

from schemas.containers import ContainerSource
from schemas.kubeoperator import PodSelectors
from services._host.cgroupfs import CgroupLayout
from services._host.cri import CriError, Listing, Sandbox
from services._host.pod_cgroups import PodGroup, PodGroups, find_tops
from services._runtime.telemetry.logging import get_logger
from services.agent.discovery.labels import APP_LABEL, NAME_LABEL, refuse_names
from services.agent.ports import Discovered, FoundContainer, GoneContainer, RejectedContainer, SourceAnswered

CONTAINERS_ANNOTATION: Final = "turnbuckle.containers"
"""On a pod: names of the containers that join, separated by commas; without it all of them do."""
INTERVAL_S: Final = 1.0
RELIST_S: Final = 30.0
"""Between queries without a new group: whether the runtime answers."""
FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 15.0


class Runtime(Protocol):
    """The container runtime's answers; `services._host.cri.CriClient`."""

    async def list(self) -> Listing:
        """Pods and containers. Raises CriError."""

    def close(self) -> None:
        """No more questions."""


@dataclass(slots=True)
class PodTable:
    """What has been reported, compared with what is there. Pure."""

    namespaces: Collection[str] = ()
    """Whose pods may join; empty: all."""
    reported: set[str] = field(default_factory=set)
    """Ids."""
    settled: set[str] = field(default_factory=set)
    """Ids of which there is nothing to report: sandboxes, pods of others, and the rejected."""

    selectors: PodSelectors = field(default_factory=PodSelectors)
    """Of pods without the label; a change is made by `select`."""
    selected: dict[str, tuple[str, Sandbox]] = field(default_factory=dict)
    """Application and pod of those that joined by a selector, by id."""

    def select(self, selectors: PodSelectors) -> bool:
        """Take other selectors: who joins another application, or none, is gone first. False: they are the same."""
        if selectors == self.selectors:
            return False
        self.selectors = selectors
        self.settled.clear()
        return True

    def _unselect(self) -> set[str]:
        """Take back those whose application is another by now; their ids."""
        moved = {
            container_id
            for container_id, (app, pod) in self.selected.items()
            if self.selectors.application_of(pod.namespace, pod.labels) != app
        }
        self.selected = {key: value for key, value in self.selected.items() if key in self.reported - moved}
        return moved

    def forget_gone(self, groups: list[PodGroup]) -> list[Discovered]:
        """Containers that have no group any more, or another application."""
        there = {group.container_id for group in groups} - self._unselect()
        gone = sorted(self.reported - there)
        self.reported &= there
        self.settled &= there
        return [GoneContainer(container_id) for container_id in gone]

    def unknown(self, groups: list[PodGroup]) -> list[PodGroup]:
        """Groups that the runtime has to be queried about."""
        return [group for group in groups if group.container_id not in self.reported | self.settled]

    def resolve(self, groups: list[PodGroup], listing: Listing) -> list[Discovered]:
        """Reports on groups that were unknown. Those that the listing lacks, too, stay unknown."""
        reports: list[Discovered] = []
        for group in groups:
            if group.container_id in listing.sandboxes:
                self.settled.add(group.container_id)
            elif group.container_id in listing.containers:
                report = self._report(group, listing)
                (self.reported if isinstance(report, FoundContainer) else self.settled).add(group.container_id)
                reports += [report] if report is not None else []
        return reports

    def _report(self, group: PodGroup, listing: Listing) -> Discovered | None:
        container = listing.containers[group.container_id]
        pod = listing.sandboxes.get(container.sandbox_id)
        if pod is None:
            return None
        selected = self.selectors.application_of(pod.namespace, pod.labels)
        app = pod.labels.get(APP_LABEL, selected)
        if app is None:
            return None
        chosen = pod.annotations.get(CONTAINERS_ANNOTATION)
        if chosen is not None and container.name not in {name.strip() for name in chosen.split(",")}:
            return None
        name = pod.labels.get(NAME_LABEL) or container.name
        reason = refuse_names(app, name)
        if reason is None and self.namespaces and pod.namespace not in self.namespaces:
            reason = f"pods of the namespace {pod.namespace!r} may not join (TURNBUCKLE_AGENT__POD_NAMESPACES)"
        if reason is not None:
            return RejectedContainer(group.container_id, app, name, ContainerSource.KUBERNETES, reason)
        if APP_LABEL not in pod.labels:
            self.selected[group.container_id] = (app, pod)
        return FoundContainer(
            group.container_id, app, name, ContainerSource.KUBERNETES, managed_directory=group.directory
        )


class PodDiscovery:
    """Reports containers of pods with the label ``turnbuckle.app``; `services.agent.ports.Discovery`."""

    def __init__(
        self,
        layout: CgroupLayout,
        runtime: Runtime,
        namespaces: Collection[str] = (),
        *,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layout = layout
        self._runtime = runtime
        self._interval_s = interval_s
        self._clock = clock
        self._table = PodTable(namespaces)
        self._groups = PodGroups(layout)
        self._tops: list[str] = []
        self._ask_at_s = self._find_at_s = clock()
        self._retry_s = FIRST_RETRY_S
        self._listed: set[str] = set()
        self.available = False

    def select(self, selectors: PodSelectors) -> None:
        """Whose pods join without a label; all of them are asked about again where that has changed."""
        if self._table.select(selectors):
            self._listed = set()

    async def run(self, sink: Callable[[Discovered], None]) -> None:
        """Report what runs, then every change, until cancelled. An absent runtime is waited for."""
        try:
            while True:
                for report in await self.scan():
                    sink(report)
                if self.available:
                    sink(SourceAnswered(ContainerSource.KUBERNETES))
                await asyncio.sleep(self._interval_s)
        finally:
            self.available = False
            self._runtime.close()

    async def scan(self) -> list[Discovered]:
        """Scan once, query the runtime if need be, and return what has changed."""
        groups = self._list()
        reports = self._table.forget_gone(groups)
        unknown = self._table.unknown(groups)
        now_s = self._clock()
        new_groups = {group.container_id for group in unknown} - self._listed
        if self.available and new_groups:
            self._retry_s = FIRST_RETRY_S
        elif now_s < self._ask_at_s:
            return reports
        self._listed = {group.container_id for group in unknown}
        try:
            listing = await self._runtime.list()
        except CriError as error:
            if self.available or self._retry_s == FIRST_RETRY_S:
                get_logger("agent").warning("container_runtime_unresponsive", error=str(error))
            self.available = False
        else:
            self.available = True
            reports += self._table.resolve(unknown, listing)
            unknown = self._table.unknown(unknown)
        self._wait(incomplete=bool(unknown) or not self.available)
        return reports

    def _wait(self, *, incomplete: bool) -> None:
        """No query before then, unless there is a new group."""
        self._ask_at_s = self._clock() + (self._retry_s if incomplete else RELIST_S)
        self._retry_s = min(2 * self._retry_s, LAST_RETRY_S) if incomplete else FIRST_RETRY_S

    def _list(self) -> list[PodGroup]:
        """All groups of pods; the kubelet's directory is searched now and then: it may start later, or anew."""
        now_s = self._clock()
        if now_s >= self._find_at_s:
            self._tops = find_tops(self._layout)
            self._find_at_s = now_s + (RELIST_S if self._tops else FIRST_RETRY_S)
        return self._groups.scan(self._tops)
