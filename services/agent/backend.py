"""Which host and which discoveries an agent works with, by its settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from pydantic import ValidationError

from schemas.containers import ContainerSource
from schemas.kubeoperator import PodSelectors
from services._host.cgroup_snapshot import UNLIMITED
from services._host.cgroupfs import CgroupLayout, CgroupUnavailableError, can_manage, detect
from services._host.kernel_programs import kernel_directory
from services._host.simulation.load_profile import Scenario
from services._runtime.bus.name_registration import Holder
from services._runtime.clock import Clock
from services._runtime.install_hint import package_missing
from services._runtime.settings_error import UnusableSettingsError
from services.agent.cgroup.open import open_host
from services.agent.cgroup.simulated import InMemoryReserveStore, NoWatchdog, SimulatedApp, SimulatedHost
from services.agent.discovery.managed import ManagedDiscovery
from services.agent.discovery.starting import StartingContainers
from services.agent.host_lock import DOCKER_LOCK, PODS_LOCK, HostLock, exec_lock, prepare_state
from services.agent.limits.accepted_updates import CpuBudget
from services.agent.memory.node_budget import MemoryBudget, default_reserved_bytes
from services.agent.memory.reserve_store import FileReserveStore
from services.agent.ports import Discovery, FoundContainer, Host, ReserveStore, Watchdog
from services.agent.settings import AgentSettings
from services.agent.watchdog.process import WatchdogOptions, WatchdogProcess

if TYPE_CHECKING:
    from services.agent.discovery.docker import DockerDiscovery
    from services.agent.discovery.pods import PodDiscovery

LISTING_TIMEOUT_S: Final = 30.0
"""Of sources that are listed without a connection, so at once."""


class BackendHost(Host, Protocol):
    """A host that counts its writes and can clean up after an agent that died."""

    @property
    def telemetry_note(self) -> str:
        """Why there is no better telemetry source; empty: there is none."""

    @property
    def no_op_writes(self) -> int:
        """Writes of a value that the kernel was known to hold."""

    def recorded(self) -> list[FoundContainer]:
        """See `Backend.recorded`; of all sources."""

    def release_leftovers(self) -> list[str]:
        """See `Backend.release_leftovers`."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What an agent runs on: host, discovery, stored state. The one that builds it closes it."""

    host: BackendHost
    discoveries: dict[str, Discovery]
    """By source."""
    reserves: ReserveStore
    watchdog: Watchdog
    """Not started yet."""
    holder: str
    """Token of a dead previous agent: see `services._runtime.bus.name_registration.Holder`."""
    closers: tuple[Callable[[], None], ...] = ()
    source_timeouts_s: Mapping[ContainerSource, float] = field(default_factory=dict)
    """For every source of `discoveries`: how long after the start its silence leaves the inventory incomplete."""
    select_pods: Callable[[PodSelectors], None] | None = None
    """Tells the discovery of pods which of them join without a label; None: there is no such discovery."""

    def recorded(self) -> list[FoundContainer]:
        """Containers of these sources that a previous agent managed and that still exist."""
        return [found for found in self.host.recorded() if found.source in self.source_timeouts_s]

    def release_leftovers(self) -> list[str]:
        """Restore what a previous agent changed and discovery does not find any more.

        To be called when discovery has had some seconds to find everything, and every minute or so after that: first
        values and OOM control of all containers that are in the state directory and not open now. Returns their keys.
        """
        return self.host.release_leftovers()

    def close(self) -> None:
        """Last of all: threads, notifications, and the locks of this host. `watchdog.stop()` before it."""
        for close in self.closers:
            close()


def build_backend(settings: AgentSettings, clock: Clock) -> Backend:
    """The backend that the settings name; on real control groups it holds this host's locks.

    Raises:
        UnusableSettingsError: control groups or the state directory cannot be written, another agent manages these
            containers, or the scenario file cannot be read.
    """
    if settings.host == "simulated":
        host = SimulatedHost(
            _read_scenario(settings), cpu_count=settings.simulated_cpus, node=settings.node, clock=clock.monotonic
        )
        holder = _holder(settings)
        reserves, watchdog = InMemoryReserveStore(), NoWatchdog()
        timeouts_s = {ContainerSource.SIMULATED: LISTING_TIMEOUT_S}
        return Backend(host, {"simulated": host}, reserves, watchdog, holder.token, (holder.release,), timeouts_s)
    try:
        layout = detect()
    except CgroupUnavailableError as error:
        raise UnusableSettingsError(f"{error}; or set TURNBUCKLE_AGENT__HOST=simulated") from error
    if (reason := can_manage(layout)) is not None:
        raise UnusableSettingsError(f"{reason}; or set TURNBUCKLE_AGENT__HOST=simulated")
    return _cgroup_backend(settings, layout)


def _holder(settings: AgentSettings) -> Holder:
    return Holder(settings.state_directory / "holders", "agent", settings.node)


def _cgroup_backend(settings: AgentSettings, layout: CgroupLayout) -> Backend:
    state = prepare_state(settings.state_directory, settings.managed_root)
    locks = _take_locks(settings)
    discoveries: dict[str, Discovery] = {"exec": ManagedDiscovery(layout, settings.managed_root)}
    timeouts_s = {ContainerSource.EXEC: LISTING_TIMEOUT_S}
    if settings.docker == "auto":
        discoveries["docker"] = _docker(settings, layout)
        timeouts_s[ContainerSource.DOCKER] = settings.docker_timeout_s
    select_pods = None
    if settings.pods == "on":
        discoveries["pods"] = pods = _pods(settings, layout)
        select_pods = pods.select
        timeouts_s[ContainerSource.KUBERNETES] = settings.pods_timeout_s
    programs = kernel_directory(settings.kernel_directory) if settings.kernel_programs == "auto" else None
    host = open_host(layout, state, programs, refuse_memory_qos=settings.memory_qos == "refuse")
    options = WatchdogOptions(
        exec_lock(settings.state_directory, settings.managed_root),
        settings.oom_wait_timeout_s,
        settings.watchdog_timeout_s,
        leave_groups=settings.watchdog_groups == "root",
    )
    holder = _holder(settings)
    closers = (host.close, *(lock.release for lock in locks), holder.release)
    watchdog = WatchdogProcess(state, options)
    reserves = FileReserveStore(state.reserves)
    return Backend(host, discoveries, reserves, watchdog, holder.token, closers, timeouts_s, select_pods)


def _docker(settings: AgentSettings, layout: CgroupLayout) -> DockerDiscovery:
    try:
        from services.agent.discovery.docker import DockerDiscovery  # noqa: PLC0415 - 0.2 s that `off` saves
    except ModuleNotFoundError as error:
        raise UnusableSettingsError(
            f"{package_missing(error.name or 'docker', 'agent')}; or set TURNBUCKLE_AGENT__DOCKER=off"
        ) from error
    return DockerDiscovery(settings.docker_url, starting=StartingContainers(layout))


def _pods(settings: AgentSettings, layout: CgroupLayout) -> PodDiscovery:
    try:
        from services._host.cri import CriClient  # noqa: PLC0415 - 17 MB that other hosts save
    except ImportError as error:
        raise UnusableSettingsError(
            f"TURNBUCKLE_AGENT__PODS=on: {package_missing(error.name or 'grpc', 'kubernetes')}"
        ) from error
    from services.agent.discovery.pods import PodDiscovery  # noqa: PLC0415 - as above

    return PodDiscovery(layout, CriClient(str(settings.cri_socket)), settings.pod_namespaces)


def _take_locks(settings: AgentSettings) -> list[HostLock]:
    directory = settings.state_directory
    wanted = [
        (
            exec_lock(directory, settings.managed_root),
            f"the containers below {settings.managed_root}/",
            "stop that agent, or set another TURNBUCKLE_AGENT__MANAGED_ROOT here",
        )
    ]
    if settings.docker == "auto":
        remedy = "stop that agent, or set TURNBUCKLE_AGENT__DOCKER=off here"
        wanted.append((directory / DOCKER_LOCK, "the containers of Docker", remedy))
    if settings.pods == "on":
        remedy = "stop that agent, or set TURNBUCKLE_AGENT__PODS=off here"
        wanted.append((directory / PODS_LOCK, "the pods", remedy))
    held: list[HostLock] = []
    try:
        for path, what, remedy in wanted:
            held.append(HostLock(path, node=settings.node, what=what, remedy=remedy))
    except UnusableSettingsError:
        for lock in held:
            lock.release()
        raise
    return held


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


def node_memory_budget(settings: AgentSettings, host_memory_bytes: int) -> MemoryBudget:
    """What may be promised of a machine with so much memory; never more than it has, whatever the settings say."""
    capacity_bytes = min(int(settings.node_memory_bytes or host_memory_bytes), host_memory_bytes)
    reserved_bytes = settings.system_reserved_memory_bytes
    return MemoryBudget(
        capacity_bytes,
        default_reserved_bytes(capacity_bytes) if reserved_bytes is None else int(reserved_bytes),
        int(settings.min_available_memory_bytes),
    )


def node_cpu_budget(settings: AgentSettings, cores: int) -> CpuBudget | None:
    """What CPU quotas on a machine with so many cores may add up to; None: whatever they are."""
    ratio = settings.cpu_overcommit
    return None if isinstance(ratio, str) else CpuBudget(cores, ratio)
