"""Whether every application reaches every other, over both uplinks."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final

from services._runtime.netns import socket_in
from services._runtime.readiness import readable
from services.cli.lab.netlink import LabNetlink
from services.cli.lab.topology import DualTor, HostNode

PORT: Final = 4_790 + 100
_POLL_S: Final = 0.05
_ANSWER_WITHIN_S: Final = 0.1


def narrow_paths(topology: DualTor) -> list[str]:
    """Pairs of hosts whose kernel route has not both uplinks, such as ``h1->h2 over p1``; empty: all are wide."""
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


def deaf_pairs(topology: DualTor) -> list[str]:
    """Pairs of applications between which a datagram does not get through, such as ``a1->a2``."""
    with ExitStack() as stack:
        sockets = {host.number: stack.enter_context(_application_socket(host)) for host in topology.hosts}
        waited_for = {(one.number, other.number) for one, other in itertools.permutations(topology.hosts, 2)}
        for one, other in itertools.permutations(topology.hosts, 2):
            with suppress(OSError):
                sockets[one.number].sendto(bytes([one.number]), (other.application_address, PORT))
        deadline = time.monotonic() + _ANSWER_WITHIN_S
        while waited_for and (left := deadline - time.monotonic()) > 0:
            for answered in readable(sockets.values(), left):
                receiver = next(number for number, owner in sockets.items() if owner is answered)
                with suppress(OSError):
                    waited_for.discard((answered.recv(16)[0], receiver))
    return [f"a{one}->a{other}" for one, other in sorted(waited_for)]


def wait_until(condition: Callable[[], list[str]], within_s: float) -> list[str]:
    """Wait until nothing is wrong any more; returns what still is after `within_s`."""
    deadline = time.monotonic() + within_s
    while wrong := condition():
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    return wrong


def _application_socket(host: HostNode) -> socket.socket:
    made = socket_in(host.application_netns, socket.AF_INET, socket.SOCK_DGRAM)
    made.settimeout(0)
    made.bind((host.application_address, PORT))
    return made
