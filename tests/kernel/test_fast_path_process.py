"""The fast path's processes against the kernel's own routes; bfdd and bgpd are played, FRR's routes are put by hand."""

from __future__ import annotations

import os
import signal
import socket
import struct

import pytest

from schemas.network import RouteKind
from services._host.netlink.socket import NetlinkSocket
from services._host.netns import socket_in
from services._runtime.settings_error import UnusableSettingsError
from services.fabric.testbed.sidecars import fast_path_is_ready
from services.fastpath.flush import main as flush_by_hand
from services.fastpath.protocol import PORT, Kind, PeerMessage, encode, receiver_tag, seal
from services.fastpath.routes import Write, override_request
from services.fastpath.values import FrrRoute, Hop
from tests.support.deadline import until
from tests.support.fast_path_lab import HostNamespace
from tests.support.fast_path_running import KEY, running

pytestmark = pytest.mark.netns
H1, H2, H3 = "10.255.0.1", "10.255.0.2", "10.255.0.3"
SEEN_S = 5.0
"""How long an override of another's report lives where one has to be seen: a second passes on a busy machine."""


@pytest.fixture
def host():
    made = HostNamespace(1)
    made.start()
    for destination in (H2, H3):
        made.frr_route(destination, "p1", "p2")
    yield made
    made.stop()


@pytest.fixture
def pair():
    """Two hosts, connected over two switches that are wires."""
    first, second = HostNamespace(1), HostNamespace(2)
    first.start(connect=False)
    second.start(first)
    first.frr_route(H2, "p1", "p2")
    second.frr_route(H1, "p1", "p2")
    yield first, second
    first.stop()
    second.stop()


async def test_a_dead_session_is_overridden_until_frr_agrees(host, tmp_path) -> None:
    assert not fast_path_is_ready(host.name)
    async with running(host, tmp_path) as fast:
        host.bfdd.change("p1", "down")
        await fast.overrides({H2: ["p2"], H3: ["p2"]})
        override = await fast.told(RouteKind.OVERRIDE, "bfd", 2)
        assert (override.interface, override.peer, override.node) == ("p1", "10.255.0.101", "n1")
        assert override.before == ("169.254.0.1@p1", "169.254.0.1@p2")
        assert override.after == ("169.254.0.1@p2",)
        assert override.latency_us > 0

        host.frr_route(H2, "p2")
        await fast.overrides({H3: ["p2"]})
        release = await fast.told(RouteKind.OVERRIDE_REMOVED, "frr_converged")
        assert (release.destination, release.interface) == (H2, "p1")
        assert (await fast.told(RouteKind.FAST_PATH, "not_converging")).alarm
        host.bfdd.change("p1", "up")
        await fast.overrides({})
        assert host.rules(), "the rule stays while we run"
        assert fast_path_is_ready(host.name), "a lab can see it"
    assert not host.rules()


async def test_lost_carrier_is_overridden_and_a_link_that_goes_down_leaves_nothing(host, tmp_path) -> None:
    async with running(host, tmp_path) as fast:
        host.ip("link", "set", "q1", "down")
        await fast.overrides({H2: ["p2"], H3: ["p2"]})
        await fast.told(RouteKind.OVERRIDE, "carrier", 2)
        host.ip("link", "set", "q1", "up")
        await fast.overrides({})
        await fast.told(RouteKind.OVERRIDE_REMOVED, "timeout", 2)

        # Administratively down: the kernel drops routes through it without a word, ours and FRR's.
        host.ip("link", "set", "p2", "down")
        await fast.overrides({H2: ["p1"], H3: ["p1"]})
        host.ip("link", "set", "p1", "down")
        await fast.overrides({})
        await fast.told(RouteKind.FAST_PATH, "flap_damped")
        await until(lambda: fast.service._state["routes"] == 0, what="no route left in FRR's mirror")


async def test_the_daemon_is_killed_during_an_override(host, tmp_path) -> None:
    async with running(host, tmp_path) as fast:
        host.bfdd.change("p1", "down")
        await fast.overrides({H2: ["p2"], H3: ["p2"]})
        first = fast.daemon
        os.kill(first, signal.SIGKILL)
        await fast.overrides({}, within_s=60)
        await until(lambda: fast.daemon not in {0, first} and host.rules(), within_s=60, what="a new daemon")
        await fast.told(RouteKind.FAST_PATH, "restarted")

        # FRR has agreed meanwhile; the other uplink's fault is answered again.
        for destination in (H2, H3):
            host.frr_route(destination, "p1", "p2")
        await until(lambda: host.bfdd.subscribers >= 2, what="a subscription of the new daemon")
        host.bfdd.change("p1", "up")
        host.bfdd.change("p2", "down")
        await fast.overrides({H2: ["p1"], H3: ["p1"]})


async def test_a_frozen_daemon_loses_its_overrides_and_begins_anew(host, tmp_path) -> None:
    async with running(host, tmp_path) as fast:
        host.bfdd.change("p1", "down")
        await fast.overrides({H2: ["p2"], H3: ["p2"]})
        os.kill(fast.daemon, signal.SIGSTOP)
        try:
            await fast.overrides({}, within_s=60)
            assert not host.rules()
        finally:
            os.kill(fast.daemon, signal.SIGCONT)
        await until(host.rules, what="the rule again")
        await fast.told(RouteKind.FAST_PATH, "loop_stalled")
        await fast.told(RouteKind.OVERRIDE_REMOVED, "lost", 2)
        assert host.overrides() == {}
        assert not fast.of(RouteKind.FAST_PATH, "restarted")


async def test_overrides_go_with_the_service_though_both_its_processes_hang(host, tmp_path) -> None:
    async with running(host, tmp_path) as fast:
        host.bfdd.change("p1", "down")
        await fast.overrides({H2: ["p2"], H3: ["p2"]})
        for pid in (fast.watchdog, fast.daemon):
            os.kill(pid, signal.SIGSTOP)
    assert (host.overrides(), host.rules()) == ({}, [])


async def test_a_watchdog_that_dies_is_replaced_and_the_new_one_works(host, tmp_path) -> None:
    async with running(host, tmp_path) as fast:
        first, daemon = fast.watchdog, fast.daemon
        os.kill(first, signal.SIGKILL)
        await until(lambda: fast.watchdog not in {0, first}, what="another watchdog")
        assert fast.daemon == daemon
        host.bfdd.change("p1", "down")
        await fast.overrides({H2: ["p2"], H3: ["p2"]})
        os.kill(daemon, signal.SIGKILL)
        await fast.overrides({}, within_s=60)


async def test_without_a_bus_faults_are_answered_and_told_afterwards_in_order(host, tmp_path) -> None:
    async with running(host, tmp_path) as fast:
        fast.bus.disconnect()
        known = len(fast.events)
        host.bfdd.change("p1", "down")
        await fast.overrides({H2: ["p2"], H3: ["p2"]})
        for destination in (H2, H3):
            host.frr_route(destination, "p2")
        await fast.overrides({})
        assert len(fast.events) == known

        fast.bus.reconnect()
        await fast.told(RouteKind.OVERRIDE_REMOVED, "frr_converged", 2)
        # Beside them, where all of it takes a second: that FRR does not converge.
        changes = [event.kind for event in fast.events[known:] if event.kind is not RouteKind.FAST_PATH]
        assert changes == [RouteKind.OVERRIDE] * 2 + [RouteKind.OVERRIDE_REMOVED] * 2
        assert [event.seq for event in fast.events] == list(range(1, len(fast.events) + 1))


async def test_other_hands_in_our_table_and_rules(host, tmp_path) -> None:
    async with running(host, tmp_path) as fast:
        host.bfdd.change("p1", "down")
        await fast.overrides({H2: ["p2"], H3: ["p2"]})
        host.ip("route", "flush", "table", "100")
        await fast.told(RouteKind.OVERRIDE_REMOVED, "lost", 2)
        host.ip("rule", "del", "pref", "90")
        await until(host.rules, what="the rule again")
        # A foreign route in our table survives our end, and so does FRR's.
        host.ip("route", "add", "192.0.2.1", "dev", "lo", "table", "100", "proto", "static")
    assert host.overrides() == {"192.0.2.1": ["lo"]}
    assert H2 in host.ip("route", "show", "proto", "bgp")


async def test_what_a_killed_service_left_is_gone_before_the_next_begins(host, tmp_path) -> None:
    with NetlinkSocket(host.name) as netlink:
        index = int(host.ip("-o", "link", "show", "p1").split(":")[0])
        netlink.write_one(override_request(Write(H2, FrrRoute((Hop(index),))), 100))
    assert host.overrides() == {H2: ["p1"]}

    async with running(host, tmp_path):
        assert host.overrides() == {}


async def test_a_second_fast_path_is_refused(host, tmp_path) -> None:
    async with running(host, tmp_path) as fast:
        with pytest.raises(UnusableSettingsError, match=f"another fast path.*{os.getpid()}"):
            async with running(host, tmp_path):
                pass
        host.bfdd.change("p1", "down")
        await fast.overrides({H2: ["p2"], H3: ["p2"]})


async def test_by_hand_everything_is_flushed(host, capsys) -> None:
    with NetlinkSocket(host.name) as netlink:
        index = int(host.ip("-o", "link", "show", "p1").split(":")[0])
        netlink.write_one(override_request(Write(H2, FrrRoute((Hop(index),))), 100))
    host.ip("rule", "add", "pref", "90", "lookup", "100", "protocol", "200")

    assert flush_by_hand([host.name]) == 0
    assert capsys.readouterr().out == "1 overrides deleted\n"
    assert (host.overrides(), host.rules()) == ({}, [])


async def test_forged_spoofed_and_replayed_words_do_nothing(pair, tmp_path) -> None:
    first, second = pair
    async with running(second, tmp_path, hold_s=SEEN_S) as two:
        fault, tag = PeerMessage(Kind.FAULT, 77, 1, H1, "10.255.0.101"), receiver_tag(KEY.encode(), H2)
        good, forged = encode(fault, KEY.encode(), H2), tag + seal(fault, b"another key, as long as ours ...")
        spoofed, other_version = encode(fault._replace(sender=H3), KEY.encode(), H2), good[:12] + b"\1" + good[13:]
        with socket_in(first.name, socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind((H1, 0))
            for data in (forged, spoofed, other_version, tag + bytes(len(good) - len(tag))):
                sender.sendto(data, (H2, PORT))
            for unread in (good[:-1], b"", bytes(len(good)), encode(fault, KEY.encode(), H3)):
                sender.sendto(unread, (H2, PORT))
            sender.sendto(encode(fault._replace(tor="9.9.9.9"), KEY.encode(), H2), (H2, PORT))
            await until(lambda: two.service._state["peers"].get("unknown_tor") == 1, what="all of them", within_s=60)
            assert second.overrides() == {}
            good = encode(fault._replace(number=2), KEY.encode(), H2)
            sender.sendto(good, (H2, PORT))
            await two.overrides({H1: ["p2"]})
            await two.overrides({})
            sender.sendto(good, (H2, PORT))
            await until(lambda: two.service._state["peers"].get("repeated") == 1, what="the replay", within_s=60)
            assert second.overrides() == {}
        counts = two.service._state["peers"]
        assert [counts[name] for name in ("forged", "spoofed", "version", "malformed")] == [1, 1, 1, 1]
        assert counts["dropped"] == 4, "the kernel has not even queued them"


async def test_ipv6_tunnel_addresses(tmp_path) -> None:
    host = HostNamespace(1)
    host.start()
    try:
        for uplink in host.uplinks:
            host.ip("addr", "add", f"fd00:{uplink[-1]}::1/64", "dev", uplink, "nodad")
        hops = [word for n in "12" for word in ("nexthop", "via", f"fd00:{n}::2", "dev", f"p{n}")]
        host.ip("route", "add", "fd00:ffff::2", "proto", "bgp", "metric", "20", *hops)
        async with running(host, tmp_path, vtep="fd00:ffff::1") as fast:
            host.bfdd.change("p1", "down")
            await until(lambda: "p2" in host.ip("-6", "route", "show", "table", "100"), what="an override")
            host.ip("route", "replace", "fd00:ffff::2", "proto", "bgp", "metric", "20", "via", "fd00:2::2", "dev", "p2")
            await until(lambda: not host.ip("-6", "route", "show", "table", "100"), what="hand-back")
            await fast.told(RouteKind.OVERRIDE_REMOVED, "frr_converged")
    finally:
        host.stop()


async def test_events_that_were_lost_are_made_up_for(host, tmp_path) -> None:
    """The daemon is stopped while more happens than its socket holds: it looks at everything again."""
    async with running(host, tmp_path, watchdog_timeout_s=60, event_buffer_bytes=4096) as fast:
        os.kill(fast.daemon, signal.SIGSTOP)
        try:
            for _ in range(40):
                host.frr_route(H3, "p1")
                host.frr_route(H3, "p2")
            host.frr_route(H3)
            host.frr_route(H2, "p2")
        finally:
            os.kill(fast.daemon, signal.SIGCONT)
        await until(lambda: fast.service._state["routes"] == 1, what="one route", within_s=60)
        await fast.told(RouteKind.FAST_PATH, "input_lost")
        await fast.told(RouteKind.FAST_PATH, "input_restored", 2)
        host.bfdd.change("p1", "down")
        await until(lambda: fast.uplink("p1")[2] == "down", what="the end of the session")
        host.frr_route(H3, "p1", "p2")
        await until(lambda: fast.service._state["routes"] == 2, what="two routes", within_s=60)
        assert host.overrides() == {}


async def test_many_destinations_are_overridden_by_one_rule(host, tmp_path) -> None:
    """Above the limit a table per uplink is kept ready; hand-back is by destination, the rule goes with the last."""
    for number in range(4, 24):
        host.frr_route(f"10.255.0.{number}", "p1", "p2")
    async with running(host, tmp_path, backup_table_above=10) as fast:
        names = {f"10.255.0.{number}" for number in range(2, 24)}
        await until(lambda: host.overrides(101) == {name: ["p2"] for name in names}, what="the table for p1's end")
        await until(lambda: host.overrides(102) == {name: ["p1"] for name in names}, what="the table for p2's end")
        assert len(host.rules()) == 1

        host.bfdd.change("p1", "down")
        await until(lambda: len(host.rules()) == 2, what="the rule")
        assert host.overrides() == {}
        assert all("dev p2" in host.ip("route", "get", name) for name in names)
        told = await fast.told(RouteKind.OVERRIDE, "bfd")
        assert {told.destination, *told.also} == names

        for name in sorted(names - {H2}):
            host.frr_route(name, "p2")
        await until(lambda: set(host.overrides(101)) == {H2}, what="all but one handed back")
        assert len(host.rules()) == 2
        host.frr_route(H2, "p2")
        await until(lambda: len(host.rules()) == 1, what="the end of the rule")
        await until(lambda: host.overrides(101) == {}, what="an empty table")

        # FRR takes the uplink back: the tables are ready again, and a kill leaves nothing.
        host.bfdd.change("p1", "up")
        for name in names:
            host.frr_route(name, "p1", "p2")
        await until(
            lambda: host.overrides(101) == {name: ["p2"] for name in names}, what="the table for p1's end again"
        )
        host.bfdd.change("p2", "down")
        await until(lambda: len(host.rules()) == 2, what="the rule")
        os.kill(fast.daemon, signal.SIGKILL)
        await until(lambda: not any("lookup 102" in line for line in host.rules()), within_s=60, what="no such rule")
    assert (host.rules(), host.overrides(101), host.overrides(102)) == ([], {}, {})


def segment(source, port, flags):
    """An IPv6 packet with a TCP header and nothing else."""
    tcp = struct.pack("!HHIIBBHHH", port, 40_000, 1, 1, 5 << 4, flags, 0, 0, 0)
    ends = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, "fe80::1")
    return struct.pack("!IHBB", 6 << 28, len(tcp), socket.IPPROTO_TCP, 1) + ends + tcp


async def test_a_switch_that_closes_its_bgp_session_is_left(host, tmp_path) -> None:
    """Only that: a FIN or RST of port 179 from a link-local address."""
    fin, rst, psh_ack, bgp = 0x11, 0x04, 0x18, 179
    async with running(host, tmp_path, hold_s=SEEN_S) as fast:
        with socket_in(host.name, socket.AF_PACKET, socket.SOCK_DGRAM) as switch:
            to = ("q1", 0x86DD, 0, 0, b"\xff" * 6)
            for packet in (
                segment("fe80::9", bgp, psh_ack),
                segment("fe80::9", 180, fin),
                segment("fd00::9", bgp, fin),
            ):
                switch.sendto(packet, to)
            host.frr_route("10.255.0.4", "p1", "p2")
            await until(lambda: fast.service._state["routes"] == 3, what="that the loop has gone on", within_s=60)
            assert host.overrides() == {}

            switch.sendto(segment("fe80::9", bgp, rst), to)
            await fast.told(RouteKind.OVERRIDE, "bgp", 3)
            await fast.told(RouteKind.OVERRIDE_REMOVED, "timeout", 3)
            # A link that is made anew is watched as well.
            host.ip("link", "del", "p1")
            host.ip("link", "add", "p1", "type", "veth", "peer", "name", "q1")
            for end in ("p1", "q1"):
                host.ip("link", "set", end, "up")
            host.frr_route(H2, "p1", "p2")
            host.bfdd.change("p1", "down")
            host.bfdd.change("p1", "up")
            made = [int(host.ip("-o", "link", "show", "p1").split(":")[0]), True, "up"]
            await until(lambda: fast.uplink("p1")[:3] == made and not host.overrides(), what="a new p1")
            switch.sendto(segment("fe80::9", bgp, fin), to)
            await fast.overrides({H2: ["p2"]})
