"""Hosts with one uplink each in network namespaces of the machine: the data path of thesis 3.4.1, without FRR.

What FRR would enter, forwarding entries and routes of the VTEPs, is entered here by hand. Nothing floods and nobody
asks for addresses, so that counters can be compared exactly, and a packet that has no entry and no rule gets nowhere.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from services._host.netns import socket_in

VNI: Final = 100
PORT: Final = 4789
MODULES: Final = ("veth", "bridge", "vxlan", "cls_flower", "act_tunnel_key", "act_mirred", "sch_ingress")
ANSWER_WITHIN_S: Final = 1.0
QUIET: Final = ("net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
FORWARD: Final = ("net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0")


def run(*command: str, given: str | None = None) -> str:
    """What a command printed.

    Raises:
        AssertionError: it failed.
    """
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def batch(netns: str, *lines: str, program: str = "ip") -> None:
    """Lines of `ip -batch`, or of `bridge` or `tc`, in a namespace."""
    run(program, "-n", netns, "-batch", "-", given="\n".join(lines) + "\n")


@dataclass(frozen=True, slots=True)
class Host:
    """A host, the namespace of its application, and its addresses; numbered from 1."""

    number: int
    prefix: str

    @property
    def netns(self) -> str:
        return f"{self.prefix}-h{self.number}"

    @property
    def application(self) -> str:
        return f"{self.prefix}-a{self.number}"

    @property
    def vtep(self) -> str:
        return f"10.255.0.{self.number}"

    @property
    def mac(self) -> str:
        return f"02:00:00:00:00:{self.number:02x}"

    @property
    def address(self) -> str:
        return f"172.16.0.{self.number}"

    def run(self, program: str, *arguments: str) -> str:
        """`ip`, `bridge` or `tc` on the host: what it printed."""
        return run(program, "-n", self.netns, *arguments)

    def tc(self, *arguments: str) -> Any:
        """What `tc -s -j` shows."""
        return json.loads(self.run("tc", "-s", "-j", *arguments) or "[]")

    def counters(self, *devices: str, received: bool = False) -> tuple[int, ...]:
        """Packets that devices have sent, or received."""
        links = {link["ifname"]: link["stats64"] for link in json.loads(self.run("ip", "-s", "-j", "link", "show"))}
        return tuple(int(links[device]["rx" if received else "tx"]["packets"]) for device in devices)

    def matched(self, mac: str) -> int:
        """Packets that rules for a MAC address have redirected."""
        rules = [rule for rule in self.tc("filter", "show", "dev", "rep0", "ingress") if rule.get("options")]
        found = [rule["options"] for rule in rules if rule["options"].get("keys", {}).get("dst_mac") == mac]
        return sum(rule["actions"][-1]["stats"]["packets"] for rule in found)

    def learn(self, *others: Host, vtep: str | None = None) -> None:
        """Enter, or change, where applications' MAC addresses are, as zebra does: two entries each."""
        lines = []
        for other in others:
            lines.append(f"fdb replace {other.mac} dev vx100 master extern_learn")
            lines.append(f"fdb replace {other.mac} dev vx100 dst {vtep or other.vtep} self extern_learn")
        batch(self.netns, *lines, program="bridge")

    def forget(self, other: Host) -> None:
        """Delete both."""
        batch(
            self.netns,
            f"fdb del {other.mac} dev vx100 master",
            f"fdb del {other.mac} dev vx100 self",
            program="bridge",
        )

    def reaches(self, other: Host, packets: int = 20) -> int:
        """How many of `packets` datagrams from one application to another come back, one after the other."""
        with (
            socket_in(self.application, socket.AF_INET, socket.SOCK_DGRAM) as here,
            socket_in(other.application, socket.AF_INET, socket.SOCK_DGRAM) as there,
        ):
            here.bind((self.address, 0))
            there.bind((other.address, 0))
            for end in (here, there):
                end.settimeout(ANSWER_WITHIN_S)
            return sum(_answered(here, there, number) for number in range(packets))


def _answered(here: socket.socket, there: socket.socket, number: int) -> bool:
    message = number.to_bytes(8, "big") * 16
    here.sendto(message, there.getsockname())
    try:
        received, sender = there.recvfrom(1 << 16)
        there.sendto(received, sender)
        return here.recv(1 << 16) == message
    except TimeoutError:
        return False


class PathLab:
    """Hosts on one underlay network."""

    def __init__(self, hosts: int, prefix: str = "tb") -> None:
        self.prefix = prefix
        self.fabric = f"{prefix}-f"
        self.hosts = tuple(Host(number, prefix) for number in range(1, hosts + 1))

    def up(self) -> None:
        """Everything but rules."""
        run("modprobe", "--all", *MODULES)
        for netns in self._namespaces():
            run("ip", "netns", "add", netns)
            run("ip", "netns", "exec", netns, "sysctl", "-qw", *QUIET, *FORWARD)
        batch(self.fabric, "link set lo up", "link add sw0 type bridge", "link set sw0 up")
        for host in self.hosts:
            self._underlay(host)
            self._overlay(host)
            self._application(host)
            host.learn(*self.others(host))

    def down(self) -> None:
        """Nothing of it stays."""
        for netns in self._namespaces():
            subprocess.run(["ip", "netns", "del", netns], capture_output=True, check=False)

    def others(self, host: Host) -> list[Host]:
        """All but one."""
        return [other for other in self.hosts if other is not host]

    def _namespaces(self) -> Sequence[str]:
        return [self.fabric, *(name for host in self.hosts for name in (host.netns, host.application))]

    def _underlay(self, host: Host) -> None:
        others = self.others(host)
        batch(
            host.netns,
            "link set lo up",
            f"address add {host.vtep}/32 dev lo",
            f"link add p1 type veth peer name d{host.number} netns {self.fabric}",
            f"address add 10.1.0.{host.number}/24 dev p1",
            "link set p1 up",
            *(f"route add {other.vtep}/32 via 10.1.0.{other.number} src {host.vtep}" for other in others),
        )
        batch(self.fabric, f"link set d{host.number} master sw0 up")

    def _overlay(self, host: Host) -> None:
        batch(
            host.netns,
            "link add br0 type bridge",
            "link set br0 up",
            f"link add vx100 type vxlan id {VNI} local {host.vtep} dstport {PORT} nolearning",
            "link set vx100 master br0 up",
            # Sends only: the receiving side is vx100, so it has a port of its own.
            f"link add vxenc0 type vxlan external local {host.vtep} dstport 4790 nolearning",
            "link set vxenc0 up",
        )
        batch(host.netns, "link set dev vx100 learning off flood off", program="bridge")

    def _application(self, host: Host) -> None:
        others = self.others(host)
        batch(
            host.netns, f"link add rep0 type veth peer name app netns {host.application}", "link set rep0 master br0 up"
        )
        batch(
            host.application,
            f"link set app address {host.mac} mtu 1400 up",
            f"address add {host.address}/24 dev app",
            *(f"neighbour add {other.address} lladdr {other.mac} dev app nud permanent" for other in others),
        )
