"""Deleting overrides: rules first, then host routes, only of the fast path's protocol and tables."""

from __future__ import annotations

import errno
import socket
import struct

import pytest

from services._edge import override_tables
from services._edge.override_tables import PROTOCOL, OverrideSocket, OverrideTables
from services._host.netlink.constants import AF_INET, AF_INET6, Rtm
from services._host.netlink.messages import Ack, Message, Request
from services._host.netlink.route_codec import Hop, KernelRoute, Rule, add_rule, decode_rule, delete_host_route
from services.fastpath.routes import override_request
from services.fastpath.values import Write
from tests.support.route_messages import route_message

RULES = [
    Rule(AF_INET, 100, 90, PROTOCOL),
    Rule(AF_INET6, 101, 91, PROTOCOL),
    Rule(AF_INET, 100, 90, 3),
    Rule(AF_INET, 254, 32_766, 2),
    Rule(AF_INET, 109, 90, PROTOCOL),
]
ROUTES = [
    KernelRoute("10.255.0.2/32", (Hop(11, "169.254.0.1"),), 100, PROTOCOL),
    KernelRoute("2001:db8::2/128", (Hop(11),), 101, PROTOCOL),
    KernelRoute("10.255.0.3/32", (Hop(11),), 102, PROTOCOL),
    KernelRoute("10.255.0.4/32", (Hop(11),), 100, 186),
    KernelRoute("10.255.1.0/24", (Hop(11),), 100, PROTOCOL),
    KernelRoute("10.255.0.2/32", (Hop(11),), 254, PROTOCOL),
]


class FakeSocket:
    """Dumps `RULES` and `ROUTES` by family and table, as the kernel's strict checking does; keeps what is written."""

    def __init__(self, *_: object, **__: object) -> None:
        self.written: list[Request] = []

    def dump(self, request: Request) -> list[Message]:
        family = request.payload[0]
        if request.kind == Rtm.GETRULE:
            return [Message(Rtm.NEWRULE, 0, 0, add_rule(rule).payload) for rule in RULES if rule.family == family]
        table = struct.unpack("=I", request.payload[-4:])[0]
        if table == 108:
            raise OSError(errno.ENOENT, "no such table")
        found = [route for route in ROUTES if (route.family, route.table) == (family, table)]
        return [Message(Rtm.NEWROUTE, 0, 0, route_message(route)) for route in found]

    def write(self, requests: list[Request]) -> list[Ack]:
        self.written += requests
        return [Ack(0)] * len(requests)

    def write_one(self, request: Request) -> Ack:
        return self.write([request])[0]

    def close(self) -> None:
        return None


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeSocket:
    made = FakeSocket()
    monkeypatch.setattr(override_tables, "NetlinkSocket", lambda *_, **__: made)
    return made


def test_rules_are_deleted_before_the_routes_and_nothing_else(kernel: FakeSocket) -> None:
    with OverrideSocket(None, OverrideTables()) as overrides:
        assert overrides.clear() == 3

    assert [request.kind for request in kernel.written] == [Rtm.DELRULE] * 2 + [Rtm.DELROUTE] * 3
    assert [decode_rule(request.payload) for request in kernel.written[:2]] == RULES[:2]
    assert kernel.written[2:] == [
        delete_host_route(route.destination.partition("/")[0], route.table, PROTOCOL) for route in ROUTES[:3]
    ]


def test_an_override_is_active_while_a_rule_refers_to_its_table(kernel: FakeSocket) -> None:
    with OverrideSocket(None, OverrideTables()) as overrides:
        assert overrides.active_destinations() == ["10.255.0.2", "2001:db8::2"]

    assert not kernel.written


@pytest.mark.parametrize("table", [100, 4_000])
def test_a_deletion_names_destination_table_and_protocol_and_any_scope(table: int) -> None:
    request = delete_host_route("10.255.0.2", table, PROTOCOL)

    header = struct.pack("=8BI", AF_INET, 32, 0, 0, table if table < 256 else 0, 200, 255, 0, 0)
    destination = struct.pack("=HH", 8, 1) + socket.inet_aton("10.255.0.2")
    assert request == (Rtm.DELROUTE, 0, header + destination + struct.pack("=HHI", 8, 15, table))
    assert override_request(Write("10.255.0.2", None), table) == request
