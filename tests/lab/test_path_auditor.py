"""The path auditor in the dual-ToR lab, with FRR and BFD for real: a wrong route is told, and its end, too."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.network import RouteEvent, RouteKind
from schemas.streams import ROUTE_STREAM
from services._runtime.bus.api import Delivery
from services.fabric.testbed.lab import Lab
from services.reconciler.service import Reconciler
from services.reconciler.settings import ReconcilerSettings
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.lab_faults import link_down
from tests.support.service_in_process import run_in_process

pytestmark = [pytest.mark.netns, pytest.mark.slow]

REMOTE = "10.255.0.2"


class Audited:
    """A reconciler that looks after the first host, and what it tells of paths."""

    def __init__(self, reconciler: Reconciler) -> None:
        self.reconciler = reconciler
        self.told: list[RouteEvent] = []

    async def take(self, delivery: Delivery) -> None:
        assert isinstance(delivery.message, RouteEvent)
        self.told.append(delivery.message)

    def of(self, *kinds: RouteKind) -> list[RouteEvent]:
        return [event for event in self.told if event.kind in kinds]

    def agrees(self) -> bool:
        """Whether all that was asked for is compared, and equal."""
        paths, view = self.reconciler._paths()
        uplinks = [path.kernel for path in paths if path.destination == REMOTE]
        return view.routes is not None and len(uplinks) == 1 and not any(path.reason for path in paths)


@pytest.fixture
async def audited(whole: Lab, tmp_path: Path) -> AsyncIterator[Audited]:
    host = whole.topology.hosts[0]
    settings = ReconcilerSettings.load(
        {}, node="h1", netns=host.netns, frr_pathspace=host.netns, state_directory=tmp_path
    )
    broker = MemoryBroker()
    bus, ours = MemoryBus(broker), MemoryBus(broker)
    async with run_in_process(Reconciler, settings, bus) as reconciler:
        audited = Audited(reconciler)
        await ours.replay(ROUTE_STREAM, audited.take)
        await until(audited.agrees, within_s=60, what="the first comparison")
        yield audited
    await bus.close(1)
    await ours.close(1)


async def test_a_route_that_is_not_frrs_is_told_within_two_seconds(whole: Lab, audited: Audited) -> None:
    """As FRR 8.4 leaves one behind after a link has flapped: one next hop fewer than FRR shows."""
    netns = whole.topology.hosts[0].netns
    shown = await asyncio.to_thread(
        subprocess.check_output, ["ip", "-n", netns, "route", "show", f"{REMOTE}/32", "proto", "bgp"], text=True
    )
    head = shown.splitlines()[0].split("proto")[0].split()[0]
    gateway = ["nexthop", "via", "inet6", "fe80::1"] if "inet6" in shown else ["via", "169.254.0.1"]
    short = ["ip", "-n", netns, "route", "replace", head, "proto", "bgp", "metric", "20", *gateway]
    await asyncio.to_thread(subprocess.check_call, [*short, "dev", "p2", "onlink"])
    await until(lambda: audited.of(RouteKind.DISAGREEMENT), within_s=60, what="the alarm")
    alarm = audited.of(RouteKind.DISAGREEMENT)[0]
    assert alarm.alarm
    assert (alarm.destination, len(alarm.after), len(alarm.frr)) == (REMOTE, 1, 2)
    assert audited.reconciler._auditor is not None
    assert audited.reconciler._auditor.tracker.disagreements == 1

    with whole.fault(link_down(1, 1)):  # zebra writes its route anew
        await until(lambda: audited.of(RouteKind.AGREEMENT), within_s=60, what="its end")
    assert audited.of(RouteKind.AGREEMENT)[0].latency_us > 1_000_000


def vtysh(netns: str, *commands: str) -> str:
    """Commands for a host's FRR, one after another."""
    words = [word for command in commands for word in ("-c", command)]
    return subprocess.check_output(["vtysh", "-N", netns, *words], text=True)


async def test_a_path_that_bgpd_calls_inaccessible_is_told_within_two_seconds(whole: Lab, audited: Audited) -> None:
    """The state that FRR issue 21769 ends in, made by a next hop that nobody has: BGP and BFD stay up."""
    netns = whole.topology.hosts[0].netns
    running = await asyncio.to_thread(vtysh, netns, "show running-config")
    speaker = next(line for line in running.splitlines() if line.startswith("router bgp"))
    family = ("configure terminal", speaker, "address-family ipv4 unicast")
    broken = ("route-map NOWHERE permit 10", "set ip next-hop 192.0.2.99", "exit")
    await asyncio.to_thread(vtysh, netns, family[0], *broken, *family[1:], "neighbor p1 route-map NOWHERE in")
    try:
        await until(lambda: whole.next_hops(1, 2) == {"p2"}, within_s=60, what="the route over one uplink")
        await until(lambda: audited.of(RouteKind.DISAGREEMENT), within_s=60, what="the alarm")
        alarm = audited.of(RouteKind.DISAGREEMENT)[0]
        assert (alarm.alarm, alarm.destination, set(alarm.bfd)) == (True, REMOTE, {"p1", "p2"})
        assert "clear bgp p1" in alarm.reason
    finally:
        await asyncio.to_thread(vtysh, netns, *family, "no neighbor p1 route-map NOWHERE in")
    await until(lambda: audited.of(RouteKind.AGREEMENT), within_s=60, what="its end")
