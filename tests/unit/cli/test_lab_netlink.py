"""The testbed's netlink: all changes of a fault in one batch, errors of what is already in place, live next hops."""

from __future__ import annotations

import errno
import socket
import struct
from contextlib import nullcontext

import pytest

from services._host.netlink.constants import AF_INET, RTNH_F_DEAD, RTNH_F_LINKDOWN, Rtm
from services._host.netlink.messages import Ack, Message, Request
from services._host.netlink.route_codec import Rule, add_rule
from services.fabric.testbed import netlink
from services.fabric.testbed.netlink import LabNetlink
from services.fabric.testbed.topology import PortState

BLACKHOLE = PortState(drops_from_cable=True, drops_to_cable=True)
P1, P2 = 11, 12


class FakeSocket:
    """Keeps batches; answers with the given errors, and dumps the given messages."""

    def __init__(self) -> None:
        self.batches: list[list[Request]] = []
        self.errors: dict[int, int] = {}
        """By message type."""
        self.payloads: list[bytes] = []

    def write(self, requests: list[Request]) -> list[Ack]:
        self.batches.append(requests)
        return [Ack(self.errors.get(request.kind, 0)) for request in requests]

    def dump(self, request: Request, *, attempts: int) -> list[Message]:
        if number := self.errors.get(request.kind):
            raise OSError(number, "refused")
        return [Message(request.kind - 2, 0, 0, payload) for payload in self.payloads]

    def close(self) -> None:
        return None


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeSocket:
    made = FakeSocket()
    monkeypatch.setattr(netlink, "NetlinkSocket", lambda *_, **__: made)
    monkeypatch.setattr(netlink, "inside", lambda _netns: nullcontext())
    monkeypatch.setattr(socket, "if_nametoindex", {"p1": P1, "p2": P2}.__getitem__)
    monkeypatch.setattr(socket, "if_indextoname", {P1: "p1", P2: "p2"}.__getitem__)
    return made


def route(destination: str, *hops: tuple[int, int], table: int = 254) -> bytes:
    """An IPv4 route with next hops (ifindex, flags)."""
    ways = b"".join(struct.pack("=HBBi", 8, flags, 0, index) for index, flags in hops)
    address = socket.inet_aton(destination)
    attributes = struct.pack("=HH4s", 8, 1, address) + struct.pack("=HH", 4 + len(ways), 9) + ways
    return struct.pack("=8BI", AF_INET, 32, 0, 0, table, 186, 0, 1, 0) + attributes


def test_all_changes_of_a_fault_are_one_batch(kernel: FakeSocket) -> None:
    with LabNetlink("x-s1") as lab:
        lab.set_ports({"p1": (PortState(), BLACKHOLE), "p2": (PortState(), PortState(up=False))})

    [batch] = kernel.batches
    kinds = [request.kind for request in batch]
    assert kinds == [Rtm.NEWQDISC, Rtm.NEWTFILTER, Rtm.NEWTFILTER, Rtm.NEWLINK]
    assert [struct.unpack_from("=i", request.payload, 4)[0] for request in batch] == [P1, P1, P1, P2]


def test_an_effect_that_is_already_in_place_is_no_error(kernel: FakeSocket) -> None:
    kernel.errors = {Rtm.NEWQDISC: errno.EEXIST, Rtm.NEWTFILTER: errno.EEXIST, Rtm.DELTFILTER: errno.ENOENT}
    with LabNetlink("x-s1") as lab:
        lab.set_ports({"p1": (PortState(), BLACKHOLE)})
        lab.set_ports({"p1": (BLACKHOLE, PortState())})

    assert [request.kind for request in kernel.batches[1]] == [Rtm.DELTFILTER, Rtm.DELTFILTER]


def test_a_refusal_names_the_namespace(kernel: FakeSocket) -> None:
    kernel.errors = {Rtm.NEWLINK: errno.EPERM, Rtm.GETRULE: errno.EPERM}
    lab = LabNetlink("x-s1")
    with pytest.raises(OSError, match="x-s1: Operation not permitted"):
        lab.set_ports({"p1": (PortState(), PortState(up=False))})
    with pytest.raises(OSError, match="x-s1: refused"):
        lab.rule_protocols()


def test_only_live_next_hops_of_the_destination_count(kernel: FakeSocket) -> None:
    kernel.payloads = [
        route("10.255.0.2", (P1, RTNH_F_DEAD), (P2, 0)),
        route("10.255.0.3", (P1, 0), (P2, RTNH_F_LINKDOWN)),
    ]
    lab = LabNetlink("x-h1")

    assert [lab.next_hops(f"10.255.0.{number}") for number in (2, 3, 4)] == [{"p2"}, {"p1"}, frozenset()]


def test_protocols_of_rules(kernel: FakeSocket) -> None:
    kernel.payloads = [add_rule(Rule(AF_INET, 100, 90, 200)).payload, add_rule(Rule(AF_INET, 254, 32_766, 2)).payload]

    assert LabNetlink("x-h1").rule_protocols() == {2, 200}
