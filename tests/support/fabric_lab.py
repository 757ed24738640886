"""Two hosts on one cable, for the fabric: namespaces, their picture before and after, what travels between them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services._host.netns import inside, socket_in
from services.fabric.check import Difference, check
from services.fabric.frr_text import FrrPaths
from services.fabric.model import HostFile
from services.fabric.paths import FabricPaths

SYSCTLS = (
    "net/ipv4/fib_multipath_hash_policy",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/conf/p1/rp_filter",
    "net/ipv4/conf/p1/forwarding",
    "net/ipv6/conf/p1/accept_ra",
    "net/ipv6/conf/p1/disable_ipv6",
)


def ip(*words: str) -> str:
    """Run `ip`; a failure fails the test with what it said."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout


def namespaces() -> set[str]:
    """Names of all network namespaces."""
    return {entry.name for entry in Path("/run/netns").iterdir()} if Path("/run/netns").is_dir() else set()


@contextmanager
def standing(directory: Path) -> Iterator[FabricLab]:
    """A lab that stands until the end of the block."""
    lab = FabricLab(directory)
    try:
        lab.build()
        yield lab
    finally:
        lab.remove()


@dataclass
class FabricLab:
    """Hosts 1 and 2 with one uplink each, p1, cabled to each other."""

    directory: Path
    prefix: str = field(default_factory=lambda: f"fb{os.getpid()}")

    def host(self, number: int) -> str:
        """The namespace that is a host."""
        return f"{self.prefix}-h{number}"

    def application(self, number: int) -> str:
        """The namespace of a host's application."""
        return f"{self.prefix}-a{number}"

    @property
    def paths(self) -> FabricPaths:
        """A journal of our own, FRR where it is."""
        return FabricPaths(state=self.directory / "state")

    def file(self, number: int, **changes: Any) -> HostFile:
        """A host's file."""
        port = {
            "name": "rep0",
            "mac": f"02:00:00:00:00:0{number}",
            "address": f"172.16.0.{number}/24",
            "netns": self.application(number),
        }
        fields: dict[str, Any] = {
            "name": self.host(number),
            "netns": self.host(number),
            "asn": 65000 + number,
            "vtep": f"10.255.0.{number}",
            "uplinks": ["p1"],
            "vni": 100,
            "ports": [port],
            "frr": {"start": True},
        }
        return HostFile.model_validate(fields | changes)

    def build(self) -> None:
        """Make the hosts and their cable."""
        for number in (1, 2):
            ip("netns", "add", self.host(number))
        ip("link", "add", "p1", "netns", self.host(1), "type", "veth", "peer", "name", "p1", "netns", self.host(2))

    def remove(self) -> None:
        """Remove whatever is left, whoever made it."""
        for name in sorted(namespaces()):
            if name.startswith(f"{self.prefix}-"):
                for pid in ip("netns", "pids", name).split():
                    subprocess.run(["kill", "-9", pid], check=False, capture_output=True)
                ip("netns", "del", name)
        for directory in (FrrPaths().configuration, FrrPaths().runtime):
            for entry in Path(directory).glob(f"{self.prefix}-*"):
                subprocess.run(["rm", "-r", str(entry)], check=True)

    def picture(self, number: int) -> dict[str, Any]:
        """All of a host that `fabric` may touch, so that two moments can be compared."""
        netns = self.host(number)
        links = json.loads(ip("-n", netns, "-d", "-j", "link"))
        addresses = json.loads(ip("-n", netns, "-j", "address"))
        with inside(netns):
            sysctls = {name: _read(f"/proc/sys/{name}") for name in SYSCTLS}
        return {
            "links": {
                # A bridge takes its MAC from its ports, and loses it with the last.
                row["ifname"]: (
                    row["mtu"],
                    row.get("master"),
                    row["ifname"] == "br0" or row.get("address"),
                    "UP" in row["flags"],
                    row.get("inet6_addr_gen_mode"),
                )
                for row in links
            },
            "addresses": {
                (row["ifname"], info["local"])
                for row in addresses
                for info in row["addr_info"]
                if info["family"] == "inet" and info["local"] != "127.0.0.1"
            },
            "sysctls": sysctls,
            "routes": ip("-n", netns, "route", "show", "proto", "bgp"),
            "neighbours": ip("-n", netns, "neigh", "show", "nud", "permanent"),
            "rules": ip("-n", netns, "rule"),
            "namespaces": {name for name in namespaces() if name.startswith(self.prefix)},
            "files": sorted(
                str(path)
                for directory in (FrrPaths().configuration, FrrPaths().runtime)
                for path in Path(directory).glob(f"**/*{netns}*")
            ),
            "processes": ip("netns", "pids", netns).split(),
        }

    def wait_until_whole(self, file: HostFile) -> None:
        """Wait until `check` finds nothing."""
        self.wait_for_differences(file, 0)

    def wait_for_differences(self, file: HostFile, count: int, *, within_s: float = 60.0) -> list[Difference]:
        """Wait until `check` finds so many; those."""
        deadline = time.monotonic() + within_s
        while len(found := check(file, self.paths)) != count:
            assert time.monotonic() < deadline, f"after {within_s:g} s: {found}"
        return found

    def exchange(self, size_bytes: int, *, within_s: float = 60.0) -> float:
        """Send datagrams from application 1 to 2 and back until one has made the way. Returns seconds."""
        begin = time.monotonic()
        with self._socket(1) as one, self._socket(2) as two:
            while time.monotonic() < begin + within_s:
                try:
                    one.sendto(bytes(size_bytes), ("172.16.0.2", 7))
                    data, sender = two.recvfrom(65_535)
                    two.sendto(data, sender)
                    assert len(one.recv(65_535)) == size_bytes
                    return time.monotonic() - begin
                except OSError:
                    continue  # no route to the neighbour yet, or nothing within the socket's time
        raise AssertionError(f"nothing came back within {within_s:g} s")

    def _socket(self, number: int) -> socket.socket:
        made = socket_in(self.application(number), socket.AF_INET, socket.SOCK_DGRAM)
        made.bind((f"172.16.0.{number}", 7))
        made.settimeout(0.2)
        return made


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
