"""Faults at the edge of the dual-ToR lab: only routes change, traffic goes on, both uplinks come back.

Upper bounds tell working from broken, not fast from slow: other work may run beside these tests. Figures come from
``make bench-thorn``.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator

import pytest

from services._edge.frr import Frr, FrrError
from services.fabric.testbed import connectivity
from services.fabric.testbed.faults import Fault
from services.fabric.testbed.lab import Lab
from services.fabric.testbed.meter import FaultTarget, OutageMeter
from services.reconciler.adapters.kernel import Kernel
from tests.support.cgroup_lab import wait_until
from tests.support.lab_events import OVERLAY, LabEvents
from tests.support.lab_faults import blackhole, isl_lost, link_down, restart_frr, switch_dead

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.machine]
WORKS_WITHIN_MS = 8_500.0
"""BFD finds a fault in 150 ms, on a machine that stands still for seconds later; BGP's hold timer would take 9 s."""
BACK_WITHIN_S = 60.0


@pytest.fixture
def meter(whole: Lab) -> Iterator[OutageMeter]:
    with OutageMeter(whole) as streams:
        yield streams


def overlay_of(netns: str) -> tuple[object, ...]:
    """What forwards between applications: FDB, tc rules, overlay devices."""
    kernel = Kernel(netns)
    try:
        seen = kernel.snapshot()
    finally:
        kernel.close()
    devices = {link.ifindex: link for link in seen.links if link.name in OVERLAY}
    entries = frozenset(entry for entry in seen.fdb if entry.ifindex in devices)
    assert len(devices) == len(OVERLAY)
    assert any(entry.destination for entry in entries), "no MAC is known to be behind another VTEP"
    return entries, frozenset(devices.values()), seen.clsact, frozenset(seen.filters), frozenset(seen.actions)


def established(netns: str) -> set[str]:
    """Uplinks with an EVPN session, in the eyes of bgpd."""
    try:
        said = asyncio.run(Frr(netns).show_json("bgpd", "show bgp l2vpn evpn summary json"))
    except FrrError:
        return set()
    peers = said.get("peers", said.get("default", {}).get("peers", {}))
    return {name for name, peer in peers.items() if peer["state"] == "Established"}


@pytest.mark.parametrize("fault", [blackhole(1, 1), link_down(1, 2)], ids=str)
def test_an_edge_fault_changes_routes_and_nothing_else(whole: Lab, fault: Fault) -> None:
    """Thesis 3.4: rules depend on FDB entries, and those on EVPN, which an edge fault does not touch."""
    hosts = [host.netns for host in whole.topology.hosts]
    before = {netns: overlay_of(netns) for netns in hosts}
    events = {netns: LabEvents(netns) for netns in hosts}
    other = {f"p{3 - fault.switch}"}

    with whole.fault(fault):
        wait_until(lambda: whole.next_hops(1, 2) == whole.next_hops(2, 1) == other, what="both hosts' way around")
        during = {netns: overlay_of(netns) for netns in hosts}
    whole.wait_for_both_uplinks()
    counted = {netns: found.counted() for netns, found in events.items()}
    for found in events.values():
        found.close()

    assert during == before
    assert {netns: overlay_of(netns) for netns in hosts} == before
    for netns in hosts:
        # At least the remote host's route narrowed and widened again.
        assert counted[netns]["route"] >= 2
        assert counted[netns]["fdb"] == counted[netns]["neigh"] == counted[netns]["tc and nexthop"] == 0


@pytest.mark.parametrize("fault", [blackhole(1, 1), switch_dead(1)], ids=str)
def test_traffic_survives(meter: OutageMeter, fault: Fault) -> None:
    """Where the traffic is; and both uplinks carry again afterwards (`measure` waits for it)."""
    measured = meter.measure(
        lambda switch: fault.model_copy(update={"switch": switch}),
        FaultTarget.OUT,
        down_s=1.0,
        over_within_s=BACK_WITHIN_S,
        settle_s=0.2,
    )

    assert measured.hits
    for outage in measured.outages:
        assert outage.over
        assert outage.outage_ms < WORKS_WITHIN_MS
    assert measured.restore_gap_ms < WORKS_WITHIN_MS


def test_the_meter_sees_an_outage_that_does_not_end(meter: OutageMeter) -> None:
    """Both uplinks of a host: nothing can help. Without this the tests above could not fail."""
    lab = meter.lab
    meter.reset()
    with lab.fault(blackhole(1, 1)) as injected_ns, lab.fault(blackhole(1, 2)):
        wait_until(lambda: not any(report.over for report in meter.report(injected_ns)), what="an outage of 0.5 s")
        assert connectivity.unreachable_pairs(lab.topology) == ["a1->a2", "a2->a1"]
    assert connectivity.wait_until(lambda: connectivity.unreachable_pairs(lab.topology), 60.0) == []


def test_the_link_between_the_switches_is_not_missed(meter: OutageMeter) -> None:
    lab = meter.lab
    meter.reset()
    with lab.fault(isl_lost()) as injected_ns:
        wait_until(lambda: all(report.sent > 3_000 for report in meter.report(injected_ns)), what="a second of traffic")
        assert lab.next_hops(1, 2) == {"p1", "p2"}
        sent = [(report.sent, report.received) for report in meter.report(injected_ns)]

    assert all(count == arrived > 0 for count, arrived in sent)


def test_carrier_lost_at_both_switches_in_turn(whole: Lab) -> None:
    """FRR 8.4 with kernel next-hop objects never took the first uplink back, and the second fault was the end."""
    for number in (1, 2):
        with whole.fault(link_down(1, number)):
            wait_until(lambda number=number: whole.next_hops(1, 2) == {f"p{3 - number}"}, what="the other uplink")
            assert connectivity.wait_until(lambda: connectivity.unreachable_pairs(whole.topology), 60.0) == []
        whole.wait_for_both_uplinks(60.0)

    for netns in whole.topology.routers:
        said = subprocess.run(["ip", "-n", netns, "nexthop"], capture_output=True, text=True, check=True)
        assert said.stdout == "", f"{netns} has next-hop objects"


def test_a_host_whose_frr_was_killed_comes_back(whole: Lab) -> None:
    """EVPN withdraws and announces everything anew: bridge, addresses and application are not touched."""
    host = whole.topology.hosts[0].netns
    entries, *_ = overlay_of(host)

    restart_frr(whole, host, at_once=True)
    # The kernel still holds what the killed zebra had installed: ask the new daemons first.
    wait_until(lambda: established(host) == {"p1", "p2"}, within_s=60.0, what="both EVPN sessions")
    whole.wait_ready(60.0)

    wait_until(lambda: overlay_of(host)[0] == entries, within_s=60, what="the same forwarding table")
