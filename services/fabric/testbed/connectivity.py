"""Connectivity checks: every application reaches every other over both uplinks, and the switches each other."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

from services._host.netns import socket_in
from services._host.readiness import readable
from services.fabric.testbed.netlink import LabNetlink
from services.fabric.testbed.topology import DualTor

PORT: Final = 4_790 + 100
_POLL_S: Final = 0.05
_REPLY_TIMEOUT_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class _Endpoint:
    name: str
    netns: str
    address: str


def incomplete_routes(topology: DualTor) -> list[str]:
    """Pairs of hosts whose kernel route lacks an uplink, such as ``h1->h2 over p1``; empty: all are complete."""
    found = []
    for host in topology.hosts:
        with LabNetlink(host.netns) as netlink:
            for other in topology.hosts:
                if other is host:
                    continue
                devices = netlink.next_hops(other.vtep)
                if devices != set(host.uplinks):
                    over = f" over {'+'.join(sorted(devices))}" if devices else " not at all"
                    found.append(f"{host.name}->{other.name}{over}")
    return found


def unreachable_pairs(topology: DualTor) -> list[str]:
    """Pairs of applications between which a datagram does not get through, such as ``a1->a2``."""
    return _unreachable(
        [_Endpoint(f"a{host.number}", host.application_netns, host.application_address) for host in topology.hosts]
    )


def unreachable_switches(topology: DualTor) -> list[str]:
    """As `unreachable_pairs` between the switches, which have no other way than the link between them: ``s1->s2``.

    Hosts do not show whether it works. FRR may have routes over it that lead nowhere: its neighbour is entered only
    with the other side's next router advertisement, up to 10 s after the session has come back.
    """
    return _unreachable([_Endpoint(switch.name, switch.netns, switch.router_id) for switch in topology.switches])


def wait_until(condition: Callable[[], list[str]], within_s: float) -> list[str]:
    """Wait until a check finds no failure; returns those that remain after ``within_s``."""
    deadline = time.monotonic() + within_s
    while failures := condition():
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    return failures


def _unreachable(endpoints: Sequence[_Endpoint]) -> list[str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(_socket(endpoint)) for endpoint in endpoints]
        missing = set(itertools.permutations(range(len(endpoints)), 2))
        for one, other in sorted(missing):
            with suppress(OSError):
                sockets[one].sendto(bytes([one]), (endpoints[other].address, PORT))
        deadline = time.monotonic() + _REPLY_TIMEOUT_S
        while missing and (left := deadline - time.monotonic()) > 0:
            for answered in readable(sockets, left):
                receiver = sockets.index(answered)
                with suppress(OSError):
                    missing.discard((answered.recv(16)[0], receiver))
    return [f"{endpoints[one].name}->{endpoints[other].name}" for one, other in sorted(missing)]


def _socket(endpoint: _Endpoint) -> socket.socket:
    made = socket_in(endpoint.netns, socket.AF_INET, socket.SOCK_DGRAM)
    made.settimeout(0)
    made.bind((endpoint.address, PORT))
    return made
