"""bfdd's frames, FRR's routes among others, bgpd's neighbours, settings: what the core is fed with."""

from __future__ import annotations

import json
import struct

import hypothesis.strategies as st
import pytest
from hypothesis import given

from services._runtime.settings_error import SettingsError
from services.fastpath.bfd import (
    BfdError,
    FrameReader,
    Session,
    Sessions,
    Subscribed,
    admin_down_status,
    combined,
    subscribe_frame,
)
from services.fastpath.config import Config
from services.fastpath.mirror import RouteMirror, Row
from services.fastpath.routes import gateway_text
from services.fastpath.service import router_ids
from services.fastpath.settings import FastPathSettings
from services.fastpath.values import FrrRoute, Hop
from tests.support.fast_path_lab import frame, session

H2 = "10.255.0.2"
ROUTE, OTHER = FrrRoute((Hop(1), Hop(2))), FrrRoute((Hop(2),))
# Seen on FRR 8.4.4.
STATUS = {
    "op": "status",
    "ipv6": True,
    "multihop": False,
    "peer-address": "fe80::c077:36ff:fece:43eb",
    "local-interface": "p1",
    "id": 12,
    "remote-id": 12,
    "state": "down",
    "diagnostics": 1,
    "remote-diagnostics": 0,
}


def test_the_subscription_is_what_bfdd_expects() -> None:
    assert subscribe_frame() == struct.pack("!IHBB", 8, 1, 4, 1) + struct.pack("=Q", 3)


@given(st.lists(st.integers(1, 40)))
def test_frames_come_in_any_pieces(sizes) -> None:
    data = frame({"status": "ok"}, kind=1, identifier=1) + frame(session("add", "p1")) + frame(STATUS)
    data += frame(session("delete", "p2"))
    reader, found, start = FrameReader(), [], 0
    for size in [*sizes, len(data)]:
        found += reader.feed(data[start : start + size])
        start += size

    assert found == [
        Subscribed(),
        Session("p1", "fe80::c077:36ff:fece:43eb", "down"),
        Session("p2", "fe80::2", None),
    ]


def test_a_session_that_either_side_closed_is_no_fault_and_is_told() -> None:
    """Until it is up again nobody watches the path (RFC 5882, 4.2). The fields are those of FRR 8.4.4."""
    neighbor_signaled = STATUS | {"diagnostics": 3}
    closed_there, as_the_rfc_has_it, closed_here, lost, up = (
        FrameReader().feed(frame(said))[0].state
        for said in (
            neighbor_signaled,
            neighbor_signaled | {"remote-diagnostics": 7},
            STATUS | {"state": "adm-down", "diagnostics": 0},
            neighbor_signaled | {"remote-diagnostics": 1},
            neighbor_signaled | {"state": "up"},
        )
    )
    assert (closed_there, as_the_rfc_has_it, closed_here) == ("remote-adm-down", "remote-adm-down", "adm-down")
    assert (lost, up) == ("down", "up"), "whoever has lost us says so"

    for state, words in ((closed_there, "by the switch"), (closed_here, "here")):
        for before in ("up", "down", None):
            news = admin_down_status("p1", before, state)
            assert news is not None
            assert (news.kind, news.alarm, news.uplink) == ("bfd_admin_down", True, "p1")
            assert words in news.reason
        assert admin_down_status("p1", state, state) is None, "said once"
        for then in ("up", "down", "init"):  # FRR 8.4.4: adm-down, down, up
            opened = admin_down_status("p1", state, then)
            assert (opened.kind, opened.alarm, opened.reason.split()[-1]) == ("bfd_opened", False, then)
    for before, state in (("up", "down"), ("down", "up"), (None, "up"), ("adm-down", None)):
        assert admin_down_status("p1", before, state) is None


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("adm-down", "up"), "up"),
        (("adm-down", "down"), "down"),
        (("adm-down", "remote-adm-down"), "adm-down"),
        (("remote-adm-down",), "remote-adm-down"),
        ((), None),
    ],
)
def test_the_sessions_of_an_uplink_taken_together(states, expected) -> None:
    assert combined(states) == expected


def test_sessions_over_several_hops_say_nothing_of_an_uplink() -> None:
    assert FrameReader().feed(frame(STATUS | {"multihop": True})) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack("!IHBB", 0, 0, 4, 2), "version 1 is spoken"),
        (struct.pack("!IHBB", 1 << 30, 0, 4, 1), "bytes"),
        (struct.pack("!IHBB", 2, 0, 4, 1) + b"{{", "no JSON"),
        (struct.pack("!IHBB", 2, 0, 4, 1) + b"[]", "not an object"),
        (frame({"status": "error", "error": "no"}, kind=1), "refused the subscription: no"),
    ],
)
def test_what_is_no_bfdd(data, words) -> None:
    with pytest.raises(BfdError, match=words):
        FrameReader().feed(data)


@given(st.binary(max_size=100))
def test_noise_never_hangs_or_crashes(data) -> None:
    reader = FrameReader()
    try:
        reader.feed(data)
    except BfdError:
        return


def test_two_sessions_of_an_uplink_are_one_path() -> None:
    sessions = Sessions(frozenset({"p1"}))

    assert sessions.update(Session("p1", "fe80::1", "up")) == ("p1", "up")
    assert sessions.update(Session("p1", "10.0.0.1", "down")) == ("p1", "up"), "packets pass"
    assert sessions.update(Session("p1", "fe80::1", "down")) == ("p1", "down")
    assert sessions.peers() == {"fe80::1": "p1", "10.0.0.1": "p1"}
    assert sessions.update(Session("p1", "fe80::1", None)) == ("p1", "down")
    assert sessions.update(Session("p1", "10.0.0.1", None)) == ("p1", None)
    assert sessions.update(Session("eth0", "fe80::1", "up")) is None


def mirror(*rows):
    made = RouteMirror(lambda destination: destination != "10.255.0.1")
    for row in rows:
        made.add(row)
    return made


def test_only_what_the_kernel_uses_and_bgp_has_made() -> None:
    bgp = Row(H2, 186, 20, 0, ROUTE)
    assert mirror(bgp).of(H2) == ROUTE
    assert mirror(bgp, Row(H2, 4, 0, 0, OTHER)).of(H2) is None, "a static route with a lower metric wins"
    assert mirror(bgp, Row(H2, 4, 30, 0, OTHER)).of(H2) == ROUTE
    assert mirror(Row(H2, 186, 20, 0, None)).of(H2) is None, "with an encapsulation"
    assert mirror(bgp._replace(destination="10.255.0.1")).all() == {}, "our own"
    assert mirror().of(H2) is None


def test_routes_that_go() -> None:
    bgp = Row(H2, 186, 20, 0, ROUTE)
    made = mirror(bgp)

    assert not made.remove(bgp._replace(metric=30))
    assert made.remove(bgp._replace(protocol=4)), "an older one, replaced meanwhile"
    assert made.of(H2) == ROUTE
    assert made.remove(bgp)
    assert made.all() == {}


def test_ipv6_routes_lose_hops_one_by_one() -> None:
    six = Row("fd00::2", 186, 20, 0, ROUTE)
    made = mirror(six)
    made.remove(six._replace(route=FrrRoute((Hop(1),))))
    assert made.of("fd00::2") == FrrRoute((Hop(2),))
    made.remove(six._replace(route=FrrRoute((Hop(2),))))
    assert made.of("fd00::2") is None


def test_gateways_in_words() -> None:
    assert gateway_text(Hop(1)) == ""
    assert gateway_text(Hop(1, b"\x08\x00\x05\x00\xa9\xfe\x00\x01")) == "169.254.0.1"
    via = b"\x16\x00\x12\x00\x0a\x00" + bytes.fromhex("fe800000000000000000000000000001") + b"\0\0"
    assert gateway_text(Hop(1, via)) == "fe80::1"


def test_router_ids_of_numbered_and_unnumbered_neighbours() -> None:
    neighbours = {
        "p1": {"remoteRouterId": "10.255.0.101"},
        "10.0.0.1": {"remoteRouterId": "10.255.0.102"},
        "p3": {"remoteRouterId": "0.0.0.0"},  # has not spoken yet
        "p4": {"remoteRouterId": "nonsense"},
        "eth9": {"remoteRouterId": "1.1.1.1"},
        "p5": None,
    }

    assert router_ids(neighbours, ("p1", "p2", "p3", "p4", "p5"), {"10.0.0.1": "p2"}) == {
        "p1": "10.255.0.101",
        "p2": "10.255.0.102",
    }
    assert router_ids([], ("p1",), {}) == {}


def load(**values):
    defaults = {"UPLINKS": "p1,p2", "VTEP": "10.255.0.1"}
    return FastPathSettings.load({f"TURNBUCKLE_FAST_PATH__{name}": text for name, text in (defaults | values).items()})


def test_the_configuration_reaches_the_hot_process_whole() -> None:
    settings = load(FABRIC_KEY="0123456789abcdef", VTEP_PREFIXES="10.255.0.0/24,fd00::/64", FRR_PATHSPACE="h1")
    config = settings.config()

    assert Config.parse(config.text()) == config
    assert config.bfd_socket == "/var/run/frr/h1/bfdd.sock"
    assert config.is_peer_vtep("10.255.0.2")
    assert not config.is_peer_vtep("10.255.1.2")
    assert not config.is_peer_vtep("10.255.0.1"), "ourselves"
    assert "0123456789abcdef" not in settings.print_config()
    assert json.loads(config.text())["key"] == b"0123456789abcdef".hex()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"FABRIC_KEY": "short"}, "openssl rand"),
        ({"TABLE": "250"}, "meet the kernel's"),
        ({"UPLINKS": "p1,p1"}, "listed twice"),
        ({"UPLINKS": ""}, "UPLINKS: must be set"),
        ({"VTEP": "h1"}, "VTEP"),
        ({"VTEP_PREFIXES": "10.255.0.1/24"}, "VTEP_PREFIXES"),
        ({"HOLD": "2"}, "did you mean TURNBUCKLE_FAST_PATH__HOLD_S"),
    ],
)
def test_settings_that_cannot_work_are_named(values, words) -> None:
    with pytest.raises(SettingsError, match=words):
        load(**values)
