"""The lab's hosts, as the fabric builds them from a host.yaml: what a lab host is, a real one is too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from services.cli.fabric.apply import up
from services.cli.fabric.frr_text import TorSwitch, tor_configuration
from services.cli.fabric.model import Bfd as FabricBfd
from services.cli.fabric.model import Bgp, HostFile
from services.cli.fabric.places import Places
from services.cli.lab.topology import (
    APPLICATION_DEVICE,
    APPLICATION_MTU_BYTES,
    DualTor,
    HostNode,
    LabSettings,
    SwitchNode,
)

VNI: Final = 100


def host_file(topology: DualTor, host: HostNode, *, realtime: bool) -> HostFile:
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
            "bfd": None if settings.bfd is None else settings.bfd.model_dump(),
            "bgp": {"keepalive_s": settings.keepalive_s, "hold_s": settings.hold_s},
            "frr": {"pathspace": host.netns, "start": True, "realtime": realtime},
        }
    )


def switch_configs(settings: LabSettings, switch: SwitchNode) -> dict[str, str]:
    """Daemon -> configuration of a switch; no bfdd where the lab has no BFD."""
    bfd = None if settings.bfd is None else FabricBfd.model_validate(settings.bfd.model_dump())
    bgp = Bgp(keepalive_s=settings.keepalive_s, hold_s=settings.hold_s)
    found = tor_configuration(TorSwitch(switch.name, switch.asn, switch.router_id, switch.ports, bfd, bgp))
    configs = {"zebra": found.zebra, "bgpd": found.bgpd}
    return configs if bfd is None else {**configs, "bfdd": found.bfdd}


def build(topology: DualTor, places: Places, *, realtime: bool) -> int:
    """Build every host, all at once; returns the number of steps that were taken.

    Raises:
        CommandError: the fabric refused a host, or could not build it.
    """
    files = [host_file(topology, host, realtime=realtime) for host in topology.hosts]
    with ThreadPoolExecutor(len(files)) as pool:
        return sum(pool.map(lambda file: _build_one(file, places), files))


def start_frr(topology: DualTor, places: Places, netns: str, *, realtime: bool) -> None:
    """Start a host's FRR where it does not run: the fabric leaves alone what is there already.

    Raises:
        CommandError: it does not start.
    """
    host = next(host for host in topology.hosts if host.netns == netns)
    _build_one(host_file(topology, host, realtime=realtime), places)


def _build_one(file: HostFile, places: Places) -> int:
    return sum(step.writes for step in up(file, places=places))
