"""How a lab is built and removed, step by step. Every step is written down before it is done (`record`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from services._host.kernel_support import CannotTryError, missing_features
from services._host.netns import NETNS_DIRECTORY
from services._runtime.command.failure import CommandError, UnavailableError
from services.fabric.places import Places
from services.fabric.testbed import companions, frr_daemons, hosts, network, record
from services.fabric.testbed.record import LabRecord
from services.fabric.testbed.topology import DualTor, LabSettings

Progress = Callable[[str], None]


def begin(settings: LabSettings, progress: Progress) -> LabRecord:
    """Check that the lab can be made, and open its record.

    Raises:
        CommandError: it exists, or something is missing; says what to do.
    """
    prefix = settings.prefix
    if record.load(prefix) is not None:
        raise CommandError(
            f"lab {prefix} stands already, or is left over: turnbuckle lab down dual-tor --prefix {prefix}"
        )
    if (reason := frr_daemons.missing()) is not None:
        raise UnavailableError(reason)
    if settings.reconciler:
        _check_kernel()
    if taken := [name for name in DualTor.of(settings).namespaces if record.inode_of(name) is not None]:
        raise CommandError(f"namespaces that are not ours have its names: {', '.join(taken)}; choose another --prefix")
    realtime = settings.realtime and frr_daemons.realtime_permitted()
    if settings.realtime and not realtime:
        progress("real-time scheduling is not permitted: outages are longer, and BFD may flap")
    held = LabRecord(settings=settings, realtime=realtime)
    record.save(held)
    return held


def _check_kernel() -> None:
    try:
        missing = missing_features()
    except CannotTryError as error:
        raise UnavailableError(str(error)) from error
    if missing:
        names = ", ".join(f"{feature.name} ({feature.option})" for feature in missing)
        raise UnavailableError(f"a reconciler has nothing to do here: this kernel lacks {names}; see make vm-shell")


def build(topology: DualTor, held: LabRecord, progress: Progress) -> None:
    """Namespaces, cables, switches, hosts.

    Raises:
        CommandError, OSError: something was refused.
    """
    for netns in topology.namespaces:
        held.namespaces[netns] = None
        record.save(held)
        network.make_namespace(netns)
        held.namespaces[netns] = record.inode_of(netns)
        record.save(held)
    network.prepare_switches(topology)
    network.lay_cables(topology.cables)
    progress(f"{len(topology.namespaces)} namespaces, {len(topology.cables)} cables")
    frr_daemons.prepare()
    steps = hosts.build(topology, places_of(held), realtime=held.realtime)
    progress(f"hosts run, after {steps} steps of `turnbuckle fabric`")
    # Right after the hosts' FRR: who starts later misses the first router advertisements, and the next come after 10 s.
    hosts.start_switches(topology, places_of(held), realtime=held.realtime)
    progress("switches run")


def start_router(topology: DualTor, held: LabRecord, netns: str) -> None:
    """Start the FRR of a host or switch again, with the configuration that it had.

    Raises:
        CommandError: it does not start.
    """
    hosts.start_frr(topology, places_of(held), netns, realtime=held.realtime)


def places_of(held: LabRecord) -> Places:
    """Where the fabric keeps its journals of the lab's hosts: not among those of real ones."""
    return Places(state=record.directory_of(held.settings.prefix) / "fabric")


def remove(held: LabRecord, progress: Progress) -> list[str]:
    """Remove what the record names; returns what had to be left, in sentences. The record goes last.

    Raises:
        CommandError: something of ours cannot be removed: the record stays, for another try.
    """
    topology = DualTor.of(held.settings)
    left: list[str] = []
    companions.stop(held.processes)
    frr_daemons.stop(topology.routers)
    progress("processes ended")
    for netns, inode in held.namespaces.items():
        found = record.inode_of(netns)
        if found is None:
            continue
        if inode is not None and found != inode:
            left.append(f"namespace {netns} is another one now, and not ours")
            continue
        left += [f"process {pid} ({name}) still lives in what was {netns}" for pid, name in _inhabitants(netns)]
        network.remove_namespace(netns)
    for netns in topology.routers:
        frr_daemons.remove_directories(netns)
    record.forget(held.settings.prefix)
    progress("namespaces removed")
    return left


def _inhabitants(netns: str) -> list[tuple[int, str]]:
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
