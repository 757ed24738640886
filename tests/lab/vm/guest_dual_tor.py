"""Runs in the lab's machine: the dual-ToR lab with a reconciler on every host, and one silent edge fault.

Everything is real: FRR announces MACs, the reconciler of each host makes rules of what zebra wrote into the tables, and
the kernel forwards by them. Prints a line of JSON; an assertion fails the job.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from services._host.netlink.objects import Filter
from services._host.netns import inside, socket_in
from services.fabric.model import Bfd
from services.fabric.testbed import state_file
from services.fabric.testbed.lab import Lab
from services.fabric.testbed.topology import HostNode, LabSettings
from services.reconciler.adapters.kernel import Kernel
from tests.support.lab_events import LabEvents
from tests.support.lab_faults import blackhole

PACKETS = 200
PORT = 7_001


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def wait_for(condition: Callable[[], bool], *, within_s: float, what: str) -> None:
    """Looks seldom: emulated, each look takes from what is waited for."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not hold within {within_s:g} s"
        time.sleep(0.5)


def filters(host: HostNode) -> frozenset[Filter]:
    kernel = Kernel(host.netns)
    try:
        return frozenset(kernel.snapshot().filters)
    finally:
        kernel.close()


def sent_by(host: HostNode) -> dict[str, int]:
    """Device -> packets sent."""
    with inside(host.netns):
        lines = Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines()[2:]
    return {line.split(":")[0].strip(): int(line.split(":")[1].split()[9]) for line in lines}


def cross(here: HostNode, there: HostNode) -> int:
    """Datagrams that got from one application to the other."""
    arrived = 0
    with (
        socket_in(here.application_netns, socket.AF_INET, socket.SOCK_DGRAM) as sender,
        socket_in(there.application_netns, socket.AF_INET, socket.SOCK_DGRAM) as receiver,
    ):
        receiver.bind((there.application_address, PORT))
        receiver.settimeout(0.5)
        for _ in range(PACKETS):
            sender.sendto(b"x", (there.application_address, PORT))
            try:
                receiver.recv(8)
            except TimeoutError:
                continue
            arrived += 1
    return arrived


def check(lab: Lab) -> dict[str, object]:
    first, second = lab.topology.hosts
    wait_for(lambda: len(filters(first)) == len(filters(second)) == 1, within_s=600.0, what="a rule on each host")
    say(f"rules on both hosts: {sorted(one.mac for host in lab.topology.hosts for one in filters(host))}")
    before = sent_by(first)
    arrived = cross(first, second)
    after = sent_by(first)
    by_rule = after["vxenc0"] - before["vxenc0"]
    by_bridge = after["vx100"] - before["vx100"]
    assert arrived == PACKETS, f"{arrived} of {PACKETS} datagrams arrived"
    assert by_rule >= PACKETS, f"only {by_rule} packets went by the rule"
    assert by_bridge < PACKETS / 10, f"{by_bridge} packets went over the bridge"

    rules = {host.name: filters(host) for host in lab.topology.hosts}
    events = {host.name: LabEvents(host.netns) for host in lab.topology.hosts}
    with lab.fault(blackhole(1, 1)):
        wait_for(lambda: lab.next_hops(1, 2) == lab.next_hops(2, 1) == {"p2"}, within_s=60.0, what="the way around")
        survived = cross(first, second)
        during = {host.name: filters(host) for host in lab.topology.hosts}
    lab.wait_for_both_uplinks(60.0)
    counted = {name: dict(found.counted()) for name, found in events.items()}
    assert survived == PACKETS, f"{survived} of {PACKETS} datagrams arrived under the fault"
    assert during == rules == {host.name: filters(host) for host in lab.topology.hosts}
    for found in counted.values():
        assert not found.keys() & {"fdb", "neigh", "tc and nexthop"}, f"not only routes changed: {counted}"
        assert found["route"] >= 2
    return {"by_rule": by_rule, "by_bridge": by_bridge, "events": counted}


def main() -> None:
    began_s = time.monotonic()
    # Emulated, FRR needs longer than a real BFD would leave it.
    bfd = Bfd(interval_ms=1_000, multiplier=3)
    settings = LabSettings(prefix="g", bfd=bfd, keepalive_s=20, hold_s=120, reconciler=True)
    with Lab.up(settings, say, within_s=300.0) as lab:
        try:
            result = check(lab)
        except AssertionError:
            for log in sorted(state_file.directory_of("g").glob("log/reconciler-*.log")):
                say(f"{log.name}:\n{log.read_text(encoding='utf-8')[-3_000:]}")
            raise
        assert lab.sidecars() == {"reconciler of h1": True, "reconciler of h2": True}
    say(json.dumps({**result, "seconds": round(time.monotonic() - began_s, 1)}))


if __name__ == "__main__":
    main()
