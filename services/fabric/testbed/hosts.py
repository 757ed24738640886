"""The lab's hosts, as the fabric builds them from a host.yaml: what a lab host is, a real one is too; switches' FRR."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from services._runtime.command.errors import UnavailableError
from services.fabric import daemons
from services.fabric.apply import up
from services.fabric.frr_text import TorSwitch, tor_configuration
from services.fabric.layout import daemon_resources, priorities
from services.fabric.machine import Machine
from services.fabric.model import Bgp, HostFile
from services.fabric.nic import Nics
from services.fabric.paths import FabricPaths
from services.fabric.resources import Daemon
from services.fabric.testbed.topology import (
    APPLICATION_DEVICE,
    APPLICATION_MTU_BYTES,
    DualTor,
    HostNode,
    LabSettings,
    SwitchNode,
)
from services.fabric.transaction import HOST_ERRORS, describe

VNI: Final = 100


def host_file(topology: DualTor, host: HostNode, *, realtime: bool = False) -> HostFile:
    """A host's description for the fabric."""
    settings = topology.settings
    return HostFile.model_validate(
        {
            "name": host.netns,
            "netns": host.netns,
            "asn": host.asn,
            "vtep": host.vtep,
            "uplinks": host.uplinks,
            "vni": VNI,
            "mtu": APPLICATION_MTU_BYTES,
            "ports": [
                {
                    "name": "rep0",
                    "mac": host.application_mac,
                    "address": f"{host.application_address}/24",
                    "netns": host.application_netns,
                    "device": APPLICATION_DEVICE,
                }
            ],
            "bfd": settings.bfd,
            "bgp": {"keepalive_s": settings.keepalive_s, "hold_s": settings.hold_s},
            "frr": {"pathspace": host.netns, "start": True, "realtime": realtime},
        }
    )


def tor_switch(settings: LabSettings, switch: SwitchNode) -> TorSwitch:
    """A switch's description for the fabric."""
    bgp = Bgp(keepalive_s=settings.keepalive_s, hold_s=settings.hold_s)
    return TorSwitch(switch.name, switch.asn, switch.router_id, switch.ports, settings.bfd, bgp)


def build(topology: DualTor, paths: FabricPaths, *, realtime: bool) -> int:
    """Build every host, all at once; returns the number of steps that were taken.

    Raises:
        CommandError: the fabric refused a host, or could not build it.
    """
    files = [host_file(topology, host, realtime=realtime) for host in topology.hosts]
    with ThreadPoolExecutor(len(files)) as pool:
        return sum(pool.map(lambda file: _build_one(file, paths), files))


def start_switches(topology: DualTor, paths: FabricPaths, *, realtime: bool) -> None:
    """Start every switch's FRR, all at once.

    Raises:
        UnavailableError: one does not start.
    """
    with ThreadPoolExecutor(len(topology.switches)) as pool:
        list(pool.map(lambda switch: _start_switch(topology, switch, paths, realtime=realtime), topology.switches))


def start_frr(topology: DualTor, paths: FabricPaths, netns: str, *, realtime: bool) -> None:
    """Start a host's or switch's FRR where it does not run: the fabric leaves alone what is there already.

    Raises:
        CommandError: it does not start.
    """
    switch = next((switch for switch in topology.switches if switch.netns == netns), None)
    if switch is not None:
        _start_switch(topology, switch, paths, realtime=realtime)
    else:
        host = next(host for host in topology.hosts if host.netns == netns)
        _build_one(host_file(topology, host, realtime=realtime), paths)


def _start_switch(topology: DualTor, switch: SwitchNode, paths: FabricPaths, *, realtime: bool) -> None:
    described = tor_switch(topology.settings, switch)
    order = priorities(with_bfd=described.bfd is not None, realtime=realtime)
    wanted = daemon_resources(switch.netns, switch.netns, tor_configuration(described), order, paths.frr)
    with Machine(Nics(paths.sysfs)) as machine:
        for resource in wanted:
            if machine.read(resource) == resource.value:
                continue
            try:
                if isinstance(resource, Daemon):
                    # Its configuration is of our own making; and each start takes seconds in an emulated machine.
                    daemons.start(resource, tried=True)
                else:
                    machine.write(resource)
            except HOST_ERRORS as error:
                raise UnavailableError(f"{resource.key}: {describe(error)}") from error


def _build_one(file: HostFile, paths: FabricPaths) -> int:
    return sum(step.writes for step in up(file, paths=paths))
