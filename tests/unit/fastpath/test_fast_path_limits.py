"""How many datagrams are looked at: whoever keeps to what a host sends always, a flood hardly, and for so long only."""

from __future__ import annotations

import socket
import sys

import hypothesis.strategies as st
import pytest
from hypothesis import given

from services._runtime.token_bucket import TokenBucket
from services.fastpath.limiter import (
    DENIED_S,
    MAX_DENIED,
    PAUSE_S,
    SOURCE_BURST,
    SOURCE_PER_S,
    TOTAL_BURST,
    TOTAL_PER_S,
    SourceLimiter,
)
from services.fastpath.packet_filter import attach, datagram_filter, dropped_by
from services.fastpath.peer_watch import PeerWatch
from services.fastpath.peers import PeerLink
from services.fastpath.protocol import SIZE, TAG_BYTES, receiver_tag
from tests.support.cgroup_lab import wait_until

PEER, FLOODER = "10.255.0.2", "10.255.0.66"
SO_MEMINFO = 55
TAG = b"\x01\x02\x03\x04\xf5\x06\x07\x08"


def test_a_flood_is_cut_and_the_peer_is_not() -> None:
    limiter = SourceLimiter(0.0)
    allowed = 0
    for millisecond in range(10_000):
        now_s = millisecond / 1_000
        limiter.expire(now_s)
        allowed += sum(limiter.allow(FLOODER, now_s) for _ in range(40))
        if millisecond % 20 == 0:
            assert limiter.allow(PEER, now_s), "50 a second are below its rate"

    # 256 at once, then 64 for each second of being denied: 256 + 9 * 64 = 832 of 400,000, and a few while it begins.
    assert SOURCE_BURST <= allowed <= SOURCE_BURST + 10 * SOURCE_PER_S


@given(st.lists(st.tuples(st.floats(0, 0.1), st.integers(0, 300)), min_size=1, max_size=300))
def test_all_sources_together_are_bounded(steps) -> None:
    limiter, now_s, allowed, seen = SourceLimiter(0.0), 0.0, 0, 0
    for pause_s, count in steps:
        now_s += pause_s
        limiter.expire(now_s)
        for _ in range(count):
            seen += 1
            allowed += limiter.allow(f"10.0.{seen // 250 % 250}.{seen % 250}", now_s)

    assert allowed <= TOTAL_BURST + now_s * TOTAL_PER_S + 1
    assert len(limiter.denied) <= MAX_DENIED


def test_too_many_of_too_many_sources_are_a_pause() -> None:
    limiter = SourceLimiter(0.0)
    assert all(limiter.allow(f"10.1.{n // 250}.{n % 250}", 0.0) for n in range(int(TOTAL_BURST)))
    assert limiter.paused_until_s == 0.0

    assert not limiter.allow(PEER, 0.0)
    assert limiter.paused_until_s == PAUSE_S
    assert limiter.allow(PEER, PAUSE_S), "2,000 a second: 20 came back within the pause"


def test_being_denied_ends_and_is_told_once_a_minute() -> None:
    limiter = SourceLimiter(0.0)
    for now_s in (0.0, 2.0, 70.0):
        limiter.expire(now_s)
        while limiter.allow(FLOODER, now_s):
            pass
        assert list(limiter.denied) == [FLOODER]
        assert limiter.due_s == now_s + DENIED_S

    assert [denied.source for denied in limiter.newly_denied] == [FLOODER] * 2
    assert "more than 256 datagrams at once" in limiter.newly_denied[0].reason
    limiter.expire(70.0 + DENIED_S)
    assert (limiter.denied, limiter.due_s) == ({}, float("inf"))
    assert limiter.allow(FLOODER, 70.0 + DENIED_S)


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_kernel_drops_what_has_not_our_tag_or_comes_from_a_denied_source(family, address) -> None:
    good = TAG + bytes(SIZE - TAG_BYTES)
    with socket.socket(family, socket.SOCK_DGRAM) as receiver, socket.socket(family, socket.SOCK_DGRAM) as sender:
        attach(receiver, datagram_filter(TAG, []))
        receiver.bind((address, 0))
        receiver.settimeout(60)
        for unread in (good[:-1], good + b"\0", b"\0" + good[1:], good[:7] + b"\0" + good[8:], b""):
            sender.sendto(unread, receiver.getsockname())
        sender.sendto(good, receiver.getsockname())
        assert receiver.recv(256) == good
        wait_until(lambda: dropped_by(receiver) == 5, what="five dropped")

        others = [f"192.0.2.{n}" for n in range(1, 32)] + [f"2001:db8::{n:x}" for n in range(1, 33)]
        kept = [other for other in others if (":" in other) == (family == socket.AF_INET6)]
        attach(receiver, datagram_filter(TAG, kept))
        sender.sendto(good, receiver.getsockname())
        assert receiver.recv(256) == good
        attach(receiver, datagram_filter(TAG, [*kept, address]))
        sender.sendto(good, receiver.getsockname())
        wait_until(lambda: dropped_by(receiver) == 6, what="it is dropped")
        attach(receiver, datagram_filter(TAG, kept))
        sender.sendto(good[:-1] + b"\x07", receiver.getsockname())
        assert receiver.recv(256)[-1] == 7, "the one before was dropped"
        assert dropped_by(receiver) == 6


def test_a_full_list_of_denied_sources_fits_into_a_program() -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as receiver:
        attach(receiver, datagram_filter(TAG, [f"2001:db8::{n:x}" for n in range(MAX_DENIED)]))


class CountingPoller:
    """Who is watched."""

    def __init__(self):
        self.watched = []

    def watch(self, watched, _handler):
        self.watched.append(watched)

    def unwatch(self, watched):
        self.watched.remove(watched)


def queued_bytes(receiver: socket.socket) -> int:
    """What waits in the kernel to be read (SO_MEMINFO, SK_MEMINFO_RMEM_ALLOC)."""
    return int.from_bytes(receiver.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 4 * 9)[:4], sys.byteorder)


def test_a_socket_that_too_many_speak_to_is_read_again_after_a_pause() -> None:
    """From more sources than are denied one by one: what comes meanwhile waits in the socket's queue."""
    link = PeerLink(None, "127.0.0.1", 0, key=b"sixteen bytes or more", boot=1)
    poller = CountingPoller()
    watch = PeerWatch(link, poller, lambda: None)
    tag, target = receiver_tag(b"sixteen bytes or more", "127.0.0.1"), link._socket.getsockname()
    link._limiter._total = TokenBucket(2, TOTAL_PER_S, 100.0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(4):
            before = queued_bytes(link._socket)
            sender.sendto(tag + bytes(SIZE - TAG_BYTES), target)
            wait_until(lambda n=before: queued_bytes(link._socket) > n, what="it has arrived")
    try:
        assert watch.read(100.0) == []
        assert (link.counts["malformed"], link.counts["limited"]) == (2, 1)
        assert (poller.watched, watch.due_s) == ([], 100.0 + PAUSE_S)
        watch.run_timers(100.0 + PAUSE_S / 2)
        assert poller.watched == []

        watch.run_timers(100.0 + PAUSE_S)
        assert (poller.watched, watch.due_s) == ([link], float("inf"))
        assert watch.read(100.0 + PAUSE_S) == []
        assert link.counts["malformed"] == 3, "the one that waited"
        state = watch.state()
        assert state["denied"] == []
        assert state["peers"]["dropped"] == 0
    finally:
        link.close()
