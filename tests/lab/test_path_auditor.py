"""The path auditor in the dual-ToR lab, with FRR and BFD for real: faults are no disagreement, a wrong route is one."""

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
from tests.support.bgp_sessions import bgp_drops, wait_reopened
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.lab_faults import blackhole, link_down
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
def slow_convergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """FRR, kernel and BFD agree after some 200 ms, on a machine that stands still after seconds: that is no alarm yet.

    That what lasts longer than a second is one is tested on times that are given
    (tests/unit/reconciler/service/test_path_auditor.py).
    """
    monkeypatch.setattr("services.reconciler.path_auditor.MIN_DURATION_S", 40.0)


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


@pytest.mark.usefixtures("slow_convergence")
async def test_an_edge_fault_is_told_as_routes_and_is_no_disagreement(whole: Lab, audited: Audited) -> None:
    def told() -> list[RouteEvent]:
        routes = audited.of(RouteKind.ROUTE)
        return [event for event in routes if any(REMOTE in name for name in (event.destination, *event.also))]

    with whole.fault(blackhole(1, 1)):
        await until(lambda: whole.next_hops(1, 2) == {"p2"}, within_s=60, what="the way around")
        await until(told, within_s=60, what="the route that changed")
    await until(lambda: whole.next_hops(1, 2) == {"p1", "p2"}, within_s=60, what="both uplinks")
    await until(audited.agrees, within_s=60, what="agreement")
    assert audited.of(RouteKind.DISAGREEMENT, RouteKind.AGREEMENT) == []
    route = told()[0]
    assert (len(route.before), len(route.after)) == (2, 1)
    assert audited.reconciler.loop is not None
    assert audited.reconciler.loop.counts.writes == 0


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


@pytest.mark.usefixtures("slow_convergence")
@pytest.mark.parametrize(("closed_at_switch", "who"), [(False, "here"), (True, "by the switch")])
async def test_a_session_that_was_closed_administratively_is_shown(
    whole: Lab, audited: Audited, *, closed_at_switch: bool, who: str
) -> None:
    """RFC 5882, 4.2: a state of its own, and no disagreement between kernel, FRR and BFD."""
    here = whole.topology.hosts[0].netns
    netns = whole.topology.switches[0].netns if closed_at_switch else here
    before = await asyncio.to_thread(bgp_drops, here)
    profile = ("configure terminal", "bfd", "profile turnbuckle")
    uplinks = ["p1"] if closed_at_switch else ["p1", "p2"]

    def shown() -> list[str]:
        sessions = audited.reconciler._paths()[1].sessions
        return list(sessions.admin_down) if sessions is not None else []

    await asyncio.to_thread(vtysh, netns, *profile, "shutdown")
    try:
        wanted = [f"BFD on {uplink} was closed administratively {who}" for uplink in uplinks]
        await until(lambda: shown() == wanted, within_s=60, what="what is shown of the sessions")
        await asyncio.to_thread(wait_reopened, here, before, set(uplinks))
        await until(lambda: whole.next_hops(1, 2) == {"p1", "p2"}, within_s=60, what="both uplinks, without BFD")
        await until(audited.agrees, within_s=60, what="agreement")
    finally:
        await asyncio.to_thread(vtysh, netns, *profile, "no shutdown")
    await until(lambda: shown() == [], within_s=60, what="the end of it")
    await until(lambda: whole.next_hops(1, 2) == {"p1", "p2"}, within_s=60, what="both uplinks")
    assert audited.of(RouteKind.DISAGREEMENT) == []
