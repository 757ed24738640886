"""The fast path beside FRR in the dual-ToR lab: faults answered, handed back, and everything that may go wrong with it.

Upper bounds tell working from broken, not fast from slow: figures come from ``make bench-thorn``.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from schemas.network import RouteKind
from services._host.netns import socket_in
from services.fabric.testbed import build, connectivity, frr_daemons
from services.fabric.testbed.faults import Direction, Fault
from services.fabric.testbed.lab import Lab
from services.fabric.testbed.meter import OutageMeter
from services.fastpath.protocol import PORT, Kind, PeerMessage, encode, receiver_tag, seal
from tests.support.bgp_sessions import bgp_drops, wait_reopened
from tests.support.cgroup_lab import wait_until
from tests.support.fast_path_lab import run
from tests.support.fast_path_pair import KEY, T_MAX_S, FastPaths, pause_until
from tests.support.lab_faults import blackhole, link_down

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.machine]
WORKS_WITHIN_MS = 8_500.0
NO_BLACK_HOLE_MS = 8_500.0
"""What a stale override may cost at most, restart of the daemon included."""


@pytest.fixture(scope="module")
def fast(dual_tor: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastPaths]:
    # One test's faults must not count in the next one's: a fault of each takes more than a second.
    with FastPaths(dual_tor, tmp_path_factory.mktemp("state"), flap_damping_window_s=3.0) as made:
        yield made


@pytest.fixture(scope="module")
def streams(dual_tor: Lab) -> Iterator[OutageMeter]:
    with OutageMeter(dual_tor) as made:
        yield made


@pytest.fixture
def calm(whole: Lab, fast: FastPaths, streams: OutageMeter) -> Lab:
    """The lab with nothing broken, the fast paths seeing, nothing told or measured yet."""
    fast.wait_quiet()
    fast.forget()
    streams.reset()
    return whole


@contextmanager
def frozen(netns: str, daemon: str) -> Iterator[None]:
    pid = frr_daemons.running(netns)[daemon]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def worst_ms(streams: OutageMeter, since_ns: int) -> float:
    """The longest gap of either direction; traffic flows now."""
    wait_until(lambda: all(report.over for report in streams.report(since_ns)), what="traffic in both directions")
    return max(report.gap_ns for report in streams.report(since_ns)) / 1e6


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (blackhole(1, 1), "bfd"),
        (blackhole(1, 2, Direction.TO_HOST), "bfd"),
        (link_down(1, 2), "carrier"),
    ],
    ids=str,
)
def test_a_fault_is_overridden_at_both_hosts_and_handed_back(
    calm: Lab, fast: FastPaths, streams: OutageMeter, fault: Fault, cause: str
) -> None:
    first, second = (host.vtep for host in calm.topology.hosts)
    uplink, other, tor = f"p{fault.switch}", f"p{3 - fault.switch}", f"10.255.0.{100 + fault.switch}"
    with calm.fault(fault) as injected_ns:
        local = fast.wait_told(1, RouteKind.OVERRIDE, cause, destination=second)
        remote = fast.wait_told(2, RouteKind.OVERRIDE, "peer")
        fast.wait_told(1, RouteKind.OVERRIDE_REMOVED, "frr_converged", destination=second)
        fast.wait_told(2, RouteKind.OVERRIDE_REMOVED, "frr_converged", destination=first)
        assert calm.next_hops(1, 2) == calm.next_hops(2, 1) == {other}
        assert worst_ms(streams, injected_ns) < WORKS_WITHIN_MS

    mine = next(event for event in local if event.destination == second)
    assert (mine.interface, mine.peer) == (uplink, tor)
    assert [hop.rpartition("@")[2] for hop in mine.after] == [other]
    assert mine.peer_ack_us > 0, "the other host has acknowledged"
    assert [(event.destination, event.interface, event.peer) for event in remote] == [(first, uplink, first)]
    fast.wait_quiet()
    assert not any(host.told(RouteKind.FAST_PATH) for host in fast.hosts)


def test_what_the_host_sends_is_lost_and_nothing_else(calm: Lab, fast: FastPaths, streams: OutageMeter) -> None:
    """FRR's bfdd does not tell its peer that it hears nothing any more, but the switch closes its BGP session."""
    with calm.fault(blackhole(1, 1, Direction.FROM_HOST)) as injected_ns:
        told = fast.wait_told(1, RouteKind.OVERRIDE, "bgp")
        vtep = calm.topology.hosts[1].vtep
        fast.wait_told(1, RouteKind.OVERRIDE_REMOVED, "frr_converged", destination=vtep)
        assert calm.next_hops(1, 2) == {"p2"}
        assert worst_ms(streams, injected_ns) < WORKS_WITHIN_MS
        wait_until(lambda: not fast.hosts[0].overrides() and not fast.hosts[1].overrides(), what="hand-back")
    assert (told[0].interface, told[0].peer) == ("p1", "10.255.0.101")


def test_a_false_message_costs_width_for_t_max_and_no_packet_its_way(
    calm: Lab, fast: FastPaths, streams: OutageMeter
) -> None:
    """Authentic, and not true: nothing is wrong with host 1's link to switch 1."""
    first, second = (host.vtep for host in calm.topology.hosts)
    sent_ns = time.monotonic_ns()
    with socket_in(calm.topology.hosts[0].netns, socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((first, 0))
        # A later start than host 1's own, which is told so at its next fault, and goes on as of one later still.
        message = PeerMessage(Kind.FAULT, time.time_ns(), 1, first, "10.255.0.101")
        sender.sendto(encode(message, KEY.encode(), second), (second, PORT))
        forged = seal(message._replace(number=2, tor="10.255.0.102"), b"not the key of this fabric")
        sender.sendto(receiver_tag(KEY.encode(), second) + forged, (second, PORT))
    fast.wait_told(2, RouteKind.OVERRIDE, "peer")
    released = fast.wait_told(2, RouteKind.OVERRIDE_REMOVED, "timeout")

    assert 0.9 * T_MAX_S < released[0].latency_us / 1e6 < 10 * T_MAX_S
    assert calm.next_hops(2, 1) == {"p1", "p2"}
    assert len(fast.hosts[1].told(RouteKind.OVERRIDE)) == 1
    assert worst_ms(streams, sent_ns) < WORKS_WITHIN_MS


def test_a_hung_control_plane_is_stood_in_for(calm: Lab, fast: FastPaths, streams: OutageMeter) -> None:
    host = calm.topology.hosts[0].netns
    with frozen(host, "bgpd"):
        with calm.fault(blackhole(1, 1)) as injected_ns:
            fast.wait_told(1, RouteKind.FAST_PATH, "not_converging")
            assert worst_ms(streams, injected_ns) < WORKS_WITHIN_MS
            assert set(map(tuple, fast.hosts[0].overrides().values())) == {("p2",)}
            assert calm.next_hops(1, 2) == {"p1", "p2"}, "FRR hangs"
        # Only once the uplink is alive again is it FRR's route that counts.
        fast.wait_told(1, RouteKind.OVERRIDE_REMOVED, "timeout")


def test_a_blip_shorter_than_detection_leaves_nothing(calm: Lab, fast: FastPaths, streams: OutageMeter) -> None:
    with calm.fault(blackhole(1, 1)) as injected_ns:
        pause_until(injected_ns / 1e9 + 0.05)
    assert worst_ms(streams, injected_ns) < WORKS_WITHIN_MS
    fast.wait_quiet()


def test_crossed_faults_keep_the_last_hop(calm: Lab, fast: FastPaths, streams: OutageMeter) -> None:
    """Host 1 loses switch 1, host 2 switch 2: what each is told would leave it no way at all."""
    with calm.fault(blackhole(1, 1)), calm.fault(blackhole(2, 2)) as injected_ns:
        wait_until(lambda: calm.next_hops(1, 2) == {"p2"} and calm.next_hops(2, 1) == {"p1"}, what="FRR's way around")
        assert connectivity.wait_until(lambda: connectivity.unreachable_pairs(calm.topology), 60.0) == []
        assert worst_ms(streams, injected_ns) < WORKS_WITHIN_MS
    for host in fast.hosts:
        for event in host.told(RouteKind.OVERRIDE):
            assert event.after


def test_killed_during_an_override_and_then_the_other_uplink(calm: Lab, fast: FastPaths, streams: OutageMeter) -> None:
    """Proved without watchdog: the stale override hides FRR's route, and the second fault is a black hole for ever."""
    host, ours = calm.topology.hosts[0].netns, fast.hosts[0]
    with ExitStack() as stopped:
        stopped.enter_context(frozen(host, "bgpd"))  # before the fault: it may converge within 200 ms
        with calm.fault(blackhole(1, 1)):
            fast.wait_told(1, RouteKind.OVERRIDE, "bfd")
            killed = ours.hot_pid
            assert ours.overrides()
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda: not ours.overrides(), within_s=60, what="an empty table")
            wait_until(lambda: ours.hot_pid not in {0, killed}, within_s=60, what="another data-plane process")
            stopped.close()
            wait_until(lambda: calm.next_hops(1, 2) == {"p2"}, what="FRR's way around")
    fast.wait_quiet()

    streams.reset()
    with calm.fault(blackhole(1, 2)) as injected_ns:
        wait_until(lambda: calm.next_hops(1, 2) == {"p1"}, what="FRR's way around")
        assert worst_ms(streams, injected_ns) < NO_BLACK_HOLE_MS


def test_the_host_closes_its_own_bfd_administratively(calm: Lab, fast: FastPaths) -> None:
    """Its profile is that of both uplinks. FRR 8.4 closes BGP on both, and opens it again without BFD."""
    here = calm.topology.hosts[0].netns
    before = bgp_drops(here)
    shut(here, "shutdown")
    try:
        told = fast.wait_told(1, RouteKind.FAST_PATH, "bfd_admin_down", count=2)
        assert {(event.interface, event.alarm) for event in told} == {("p1", True), ("p2", True)}
        assert all("closed administratively here" in event.reason for event in told)
        wait_reopened(here, before, {"p1", "p2"})
        wait_until(lambda: calm.next_hops(1, 2) == {"p1", "p2"}, within_s=60, what="both uplinks, without BFD")
        wait_until(
            lambda: {row[2] for row in fast.hosts[0].state["uplinks"].values()} == {"adm-down"},
            what="the state of both uplinks",
        )
        wait_until(lambda: not any(host.overrides() for host in fast.hosts), what="no override")
        assert not fast.hosts[0].told(RouteKind.OVERRIDE, "bfd")
        assert not fast.hosts[0].told(RouteKind.FAST_PATH, "flap_damped")
        assert len(fast.hosts[0].told(RouteKind.FAST_PATH, "bfd_admin_down")) == 2, "told once for each uplink"
    finally:
        shut(here, "no shutdown")
    opened = fast.wait_told(1, RouteKind.FAST_PATH, "bfd_opened", count=2)
    assert {event.interface for event in opened} == {"p1", "p2"}
    fast.wait_quiet()
    assert not fast.hosts[0].told(RouteKind.OVERRIDE, "bfd"), "opened again, it is no fault either"

    fast.forget()
    with calm.fault(blackhole(1, 1)):
        fast.wait_told(1, RouteKind.OVERRIDE, "bfd")
        wait_until(lambda: calm.next_hops(1, 2) == {"p2"}, what="FRR's way around")


def shut(netns: str, word: str) -> None:
    """Have bfdd close or open the sessions of our profile."""
    run("vtysh", "-N", netns, "-c", "configure terminal", "-c", "bfd", "-c", "profile turnbuckle", "-c", word)


def test_bfdd_is_restarted(calm: Lab, fast: FastPaths) -> None:
    """Blind meanwhile; sessions that come up afterwards are no fault, and the next real one is answered."""
    host = calm.topology.hosts[0].netns
    os.kill(frr_daemons.running(host)["bfdd"], signal.SIGKILL)
    fast.wait_told(1, RouteKind.FAST_PATH, "input_lost")
    wait_until(lambda: "bfdd" not in frr_daemons.running(host), what="the end of bfdd")
    build.start_router(calm.topology, calm._state, host)
    fast.wait_told(1, RouteKind.FAST_PATH, "input_restored")
    fast.wait_quiet()
    assert not fast.hosts[0].told(RouteKind.OVERRIDE, "bfd")

    fast.forget()
    with calm.fault(blackhole(1, 1)):
        fast.wait_told(1, RouteKind.OVERRIDE, "bfd")
        wait_until(lambda: calm.next_hops(1, 2) == {"p2"}, what="FRR's way around")
