"""Builds and removes a lab, step by step. Every step is saved before it is done (`state_file`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from services._edge.kernel_support import CannotTryError, missing_features
from services._host.netns import NETNS_DIRECTORY
from services._runtime.command.errors import CommandError, UnavailableError
from services.fabric.paths import FabricPaths
from services.fabric.testbed import frr_daemons, hosts, network, processes, state_file
from services.fabric.testbed.state_file import LabState
from services.fabric.testbed.topology import DualTor, LabSettings

Progress = Callable[[str], None]


def begin(settings: LabSettings, progress: Progress) -> LabState:
    """Check that the lab can be built, and create its state file.

    Raises:
        CommandError: it exists, or something is missing; says what to do.
    """
    prefix = settings.prefix
    if state_file.load(prefix) is not None:
        raise CommandError(
            f"lab {prefix} stands already, or is left over: turnbuckle lab down dual-tor --prefix {prefix}"
        )
    if (reason := frr_daemons.missing()) is not None:
        raise UnavailableError(reason)
    if settings.reconciler:
        _check_kernel()
    if taken := [name for name in DualTor.of(settings).namespaces if state_file.inode_of(name) is not None]:
        raise CommandError(f"other namespaces have its names: {', '.join(taken)}; choose another --prefix")
    realtime = settings.realtime and frr_daemons.realtime_permitted()
    if settings.realtime and not realtime:
        progress("real-time scheduling is not permitted: outages are longer, and BFD may flap")
    state = LabState(settings=settings, realtime=realtime)
    state_file.save(state)
    return state


def _check_kernel() -> None:
    try:
        missing = missing_features()
    except CannotTryError as error:
        raise UnavailableError(str(error)) from error
    if missing:
        names = ", ".join(f"{feature.name} ({feature.option})" for feature in missing)
        raise UnavailableError(f"a reconciler has nothing to do here: this kernel lacks {names}; see make vm-shell")


def build(topology: DualTor, state: LabState, progress: Progress) -> None:
    """Namespaces, cables, switches, hosts.

    Raises:
        CommandError, OSError: something was refused.
    """
    for netns in topology.namespaces:
        state.namespaces[netns] = None
        state_file.save(state)
        network.make_namespace(netns)
        state.namespaces[netns] = state_file.inode_of(netns)
        state_file.save(state)
    network.prepare_switches(topology)
    network.create_cables(topology.cables)
    progress(f"{len(topology.namespaces)} namespaces, {len(topology.cables)} cables")
    frr_daemons.prepare()
    steps = hosts.build(topology, fabric_paths_of(state), realtime=state.realtime)
    progress(f"hosts run, after {steps} steps of `turnbuckle fabric`")
    # Right after the hosts' FRR: a later start misses the first router advertisements, and the next come after 10 s.
    hosts.start_switches(topology, fabric_paths_of(state), realtime=state.realtime)
    progress("switches run")


def start_router(topology: DualTor, state: LabState, netns: str) -> None:
    """Start the FRR of a host or switch again, with the configuration that it had.

    Raises:
        CommandError: it does not start.
    """
    hosts.start_frr(topology, fabric_paths_of(state), netns, realtime=state.realtime)


def fabric_paths_of(state: LabState) -> FabricPaths:
    """Directories of the fabric for the lab's hosts: their journals are apart from those of real ones."""
    return FabricPaths(state=state_file.directory_of(state.settings.prefix) / "fabric")


def remove(state: LabState, progress: Progress) -> list[str]:
    """Remove what the state file names; returns what had to be left, in sentences. The state file goes last.

    Raises:
        CommandError: something of the lab cannot be removed: the state file stays, for another try.
    """
    topology = DualTor.of(state.settings)
    processes.end(state.processes)
    frr_daemons.stop(topology.routers)
    progress("processes ended")
    left = remove_namespaces(state.namespaces)
    for netns in topology.routers:
        frr_daemons.remove_directories(netns)
    state_file.forget(state.settings.prefix)
    progress("namespaces removed")
    return left


def remove_namespaces(namespaces: Mapping[str, int | None]) -> list[str]:
    """Remove namespaces, by name and inode (None: whatever has the name); returns what had to be left, in sentences.

    Raises:
        CommandError: one cannot be removed.
    """
    left: list[str] = []
    for netns, inode in namespaces.items():
        found = state_file.inode_of(netns)
        if found is None:
            continue
        if inode is not None and found != inode:
            left.append(f"namespace {netns} is another one now, not made by this lab")
            continue
        left += [f"process {pid} ({name}) still lives in what was {netns}" for pid, name in _processes_in(netns)]
        network.remove_namespace(netns)
    return left


def _processes_in(netns: str) -> list[tuple[int, str]]:
    """Processes in a namespace: pid and name."""
    inode = (NETNS_DIRECTORY / netns).stat().st_ino
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            if (entry / "ns" / "net").stat().st_ino == inode:
                found.append((int(entry.name), (entry / "comm").read_text(encoding="utf-8").strip()))
    return found
