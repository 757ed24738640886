"""A network namespace with the devices of one host, for tests of the kernel adapter on any kernel (no flower)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

DEVICES = (
    "link set lo up",
    "address add 10.255.0.1/32 dev lo",
    "link add br0 type bridge",
    "link set br0 up",
    "link add rep0 type veth peer name app",
    "link set rep0 master br0 up",
    "link set app up",
    "link add p1 type veth peer name d1",
    "link add p2 type veth peer name d2",
    *(f"link set {name} up" for name in ("p1", "d1", "p2", "d2")),
    "link add vx100 type vxlan id 100 local 10.255.0.1 dstport 4789 nolearning",
    "link set vx100 master br0 up",
    "link add vxenc0 type vxlan external dstport 4790 nolearning",
    "link set vxenc0 up",
)
_NUMBERS = count()


def run(*command: str, given: str | None = None) -> str:
    """What a command printed.

    Raises:
        AssertionError: it failed.
    """
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


class NetlinkGround:
    """The namespace and what iproute2 says of it."""

    def __init__(self, netns: str) -> None:
        self.netns = netns

    def batch(self, lines: Sequence[str], program: str = "ip") -> None:
        """Lines of `ip -batch`, or of bridge or tc."""
        run(program, "-n", self.netns, "-batch", "-", given="\n".join(lines) + "\n")

    def ip(self, *arguments: str) -> str:
        """What ip printed."""
        return run("ip", "-n", self.netns, *arguments)

    def tc(self, *arguments: str) -> str:
        """What tc printed."""
        return run("tc", "-n", self.netns, *arguments)

    def bridge(self, *arguments: str) -> str:
        """What bridge printed."""
        return run("bridge", "-n", self.netns, *arguments)

    def ifindex(self, name: str) -> int:
        """Of a device."""
        return int(json.loads(self.ip("-j", "link", "show", name))[0]["ifindex"])


@contextmanager
def netlink_ground(devices: Sequence[str] = DEVICES) -> Iterator[NetlinkGround]:
    """One that is gone afterwards, even if a test has deleted it."""
    ground = NetlinkGround(f"nlg-{os.getpid()}-{next(_NUMBERS)}")
    run("ip", "netns", "add", ground.netns)
    try:
        ground.batch(devices)
        yield ground
    finally:
        subprocess.run(["ip", "netns", "del", ground.netns], capture_output=True, check=False)
