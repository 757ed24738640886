"""tc rules both ways, without a kernel; what a kernel with flower sent stands in tests/support/flower_messages.py."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services._edge import kernel_support
from services._host.netlink import link_codec, tc_decode
from services._host.netlink import tc_codec as tc
from services._host.netlink.attributes import MalformedError, attribute, nested, u32
from services._host.netlink.constants import Rtm
from services._host.netlink.messages import HEADER
from services._host.netlink.objects import ACTION_SKIP_HW, ACTION_SKIP_SW, Action, ActionKind, Filter, Tunnel
from tests.support import flower_messages as sent
from tests.support.examples import examples

KEY = Action(ActionKind.TUNNEL_KEY, 1, b"THRN" + bytes(8), Tunnel("10.255.0.1", "10.255.0.2", 100, 4789))
REDIRECT = Action(ActionKind.MIRRED, 900, b"THRN", redirect_to=4)
RULE = Filter(3, 100, 1, "flower", "02:00:00:00:00:02", (KEY, REDIRECT))

V4 = st.ip_addresses(v=4).map(str)
V6 = st.ip_addresses(v=6).map(lambda address: str(address).split("%", maxsplit=1)[0])
U32 = st.integers(1, 0xFFFFFFFF)
NO, YES = st.just(value=False), st.just(value=True)
COOKIES = st.binary(max_size=16)
FLAGS = st.sampled_from([0, ACTION_SKIP_HW, ACTION_SKIP_SW])
MACS = st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":"))
TUNNELS = st.one_of(
    *(
        st.builds(Tunnel, address, address, U32 | st.just(0), st.integers(0, 0xFFFF), st.booleans())
        for address in (V4, V6)
    )
)
KEYS = st.builds(Action, st.just(ActionKind.TUNNEL_KEY), U32, COOKIES, TUNNELS, flags=FLAGS, standalone=NO)
REDIRECTS = st.builds(Action, st.just(ActionKind.MIRRED), U32, COOKIES, redirect_to=U32, flags=FLAGS, standalone=NO)
RULES = st.builds(
    Filter,
    st.integers(1, 0x7FFFFFFF),
    st.integers(1, 0xFFFF),
    U32,
    st.just("flower"),
    MACS,
    st.lists(KEYS | REDIRECTS, max_size=4).map(tuple),
    chain=U32 | st.just(0),
    protocol=st.sampled_from([3, 0x0800, 0x86DD]),
    skip_hw=YES,
    skip_sw=st.booleans(),
)


def datagram(payloads: list[bytes]) -> bytes:
    return b"".join(
        HEADER.pack(16 + len(payload), Rtm.NEWTFILTER, 2, 1, 0) + payload + bytes(-len(payload) % 4)
        for payload in payloads
    )


def test_golden_bytes_of_a_filter() -> None:
    """As the prototype wrote it; `tc -j` showed it to be right."""
    key = nested(1, attribute(1, b"tunnel_key\0"), nested(2, attribute(2, struct.pack("=IIiiii", 1, 0, 3, 0, 0, 1))))
    parms = struct.pack("=IIiiiiI", 900, 0, 4, 0, 0, 1, 0)
    redirect = nested(2, attribute(1, b"mirred\0"), nested(2, attribute(2, parms)))
    mac = bytes.fromhex("020000000002")
    options = nested(2, attribute(4, mac), attribute(5, b"\xff" * 6), nested(3, key, redirect))
    header = struct.pack("=BBHiIII", 0, 0, 0, 3, 1, 0xFFFFFFF2, (100 << 16) | 0x0300)
    expected = header + attribute(1, b"flower\0") + options
    assert tc.add_filter(RULE) == (44, 0x600, expected)
    # Replacing takes NLM_F_CREATE without NLM_F_EXCL, as `tc filter replace` does.
    assert tc.add_filter(RULE, replace=True) == (44, 0x400, expected)
    assert tc.delete_filter(RULE) == (45, 0, header + attribute(1, b"flower\0"))


def test_golden_bytes_of_actions() -> None:
    parms = struct.pack("=IIiiii", 1, 0, 3, 0, 0, 1)
    tunnel = attribute(3, bytes([10, 255, 0, 1])) + attribute(4, bytes([10, 255, 0, 2]))
    tunnel += attribute(7, b"\0\0\0\x64") + attribute(9, b"\x12\xb5")
    entry = nested(1, attribute(1, b"tunnel_key\0"), nested(2, attribute(2, parms), tunnel), attribute(6, KEY.cookie))
    assert tc.add_action(KEY) == (48, 0x600, bytes(4) + nested(1, entry))
    assert tc.add_action(KEY, replace=True).flags == 0x500
    gone = bytes(4) + nested(1, nested(1, attribute(1, b"mirred\0"), u32(3, 900)))
    assert tc.delete_action("mirred", 900) == (49, 0, gone)
    clsact = struct.pack("=BBHiIII", 0, 0, 0, 3, 0xFFFF0000, 0xFFFFFFF1, 0) + attribute(1, b"clsact\0")
    assert tc.add_clsact(3) == (36, 0x600, clsact)


def test_what_a_kernel_with_flower_sent() -> None:
    bound = {"bound": 2, "standalone": True}
    actions = (replace(KEY, **bound), replace(REDIRECT, **bound))
    assert tc_decode.decode_filter(sent.RULE) == replace(RULE, actions=actions, in_hw=False)
    assert tc_decode.decode_filter(sent.PREFERENCE) is None
    assert sent.actions_of(sent.KEYS) == (
        actions[0],
        Action(ActionKind.TUNNEL_KEY, 2, tunnel=Tunnel("2001:db8::1", "2001:db8::2", 0xFFFFFF, 4790, checksum=False)),
    )
    assert sent.actions_of(sent.REDIRECT) == (actions[1],)
    other = Filter(3, 7, 4, "flower", "02:00:00:00:00:04", foreign_actions=True, skip_hw=True, in_hw=False)
    assert tc_decode.decode_filter(sent.SKIP_HW) == other
    by_address = Filter(3, 8, 5, "flower", None, foreign_actions=True, protocol=0x0800, in_hw=False)
    assert tc_decode.decode_filter(sent.BY_ADDRESS) == by_address


def test_a_terse_message_is_no_rule_of_ours() -> None:
    """Without keys nobody knows what it matches: it must not pass for a filter without MAC and be deleted as such."""
    with pytest.raises(MalformedError):
        tc_decode.decode_filter(sent.TERSE)


@given(st.one_of(KEYS, REDIRECTS))
def test_an_action_comes_back(action: Action) -> None:
    [found] = sent.actions_of(tc.add_action(action).payload)
    assert found == action


@given(RULES)
def test_a_filter_comes_back(rule: Filter) -> None:
    payload = tc.add_filter(rule).payload
    assert tc_decode.decode_filter(payload) == rule
    # Without flags only indexes are written.
    bare = tc_decode.decode_filter(tc.add_filter(replace(rule, skip_hw=False, skip_sw=False)).payload)
    assert bare is not None
    assert [(a.kind, a.index) for a in bare.actions] == [(a.kind, a.index) for a in rule.actions]
    assert {(a.tunnel, a.redirect_to, a.cookie) for a in bare.actions} <= {(None, 0, b"")}


@settings(max_examples=examples(50))
@given(st.lists(RULES, max_size=4), st.lists(RULES, max_size=2), st.randoms())
def test_reading_with_a_memory_is_reading(first: list[Filter], news: list[Filter], random) -> None:
    """Some stay, some change their actions only, some go, some come: each dump is read as if it were the first."""
    second = [replace(rule, actions=rule.actions[::-1]) if random.random() < 0.3 else rule for rule in first + news]
    random.shuffle(second)
    del second[random.randrange(len(second) + 1) :]
    reader = tc_decode.FilterReader()
    for rules in (first, second, second):
        data = datagram([tc.add_filter(rule).payload for rule in rules])
        assert reader.read(3, [data]) == tuple(rules)


@given(st.lists(RULES, min_size=1, max_size=4), st.data())
def test_a_memory_does_not_hide_nonsense(rules: list[Filter], data: st.DataObject) -> None:
    """Any byte of the second dump changes: it is read as a reader without memory reads it, or refused as well."""
    whole = datagram([tc.add_filter(rule).payload for rule in rules])
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = bytes([*whole[:at], data.draw(st.integers(0, 255)), *whole[at + 1 :]])
    reader = tc_decode.FilterReader()
    reader.read(3, [whole])
    try:
        expected = tc_decode.FilterReader().read(3, [changed])
    except MalformedError:
        with suppress(MalformedError):
            reader.read(3, [changed])
        return
    assert reader.read(3, [changed]) == expected


def test_actions_in_the_midst_of_options_are_read() -> None:
    """Flower writes them last, but nothing says that it always will."""
    table = nested(3, nested(1, *tc._action(KEY)))
    keys = attribute(4, bytes.fromhex("020000000002")) + attribute(5, b"\xff" * 6)
    header = tc._filter_header(RULE)
    payload = header + nested(2, table, keys)
    expected = replace(RULE, actions=(replace(KEY, standalone=False),))
    assert tc_decode.decode_filter(payload) == expected
    reader = tc_decode.FilterReader()
    assert [reader.read(3, [datagram([payload])]) for _ in range(2)] == [(expected,)] * 2


@pytest.mark.parametrize("what", ["continue", "release", "tos", "ttl", "no_frag", "options", "no_id", "no_destination"])
def test_a_key_that_does_more_or_less_is_no_tunnel(what: str) -> None:
    then, mode = (0 if what == "continue" else 3), (2 if what == "release" else 1)
    parts = [attribute(2, struct.pack("=IIiiii", 1, 0, then, 0, 0, mode)), attribute(3, bytes(4))]
    parts += [attribute(4, bytes(4))] * (what != "no_destination") + [attribute(7, bytes(4))] * (what != "no_id")
    more = {"tos": 12, "ttl": 13, "no_frag": 14, "options": 11}
    parts += [attribute(more[what], b"\x04")] if what in more else []
    action = tc_decode.decode_action(attribute(1, b"tunnel_key\0") + nested(2, *parts))
    assert action is not None
    assert (action.index, action.tunnel) == (1, None)


@pytest.mark.parametrize(("then", "what"), [(3, 1), (4, 2), (4, 3), (4, 4)])
def test_a_mirred_that_does_else_is_no_redirect(then: int, what: int) -> None:
    """Goes on afterwards, copies (2), or leads to ingress (3, 4)."""
    parms = struct.pack("=IIiiiiI", 900, 0, then, 0, 0, what, 4)
    action = tc_decode.decode_action(attribute(1, b"mirred\0") + nested(2, attribute(2, parms)))
    assert action is not None
    assert (action.index, action.redirect_to) == (900, 0)


def test_internal_flags_of_the_kernel_are_no_difference() -> None:
    """TCA_ACT_FLAGS tells of bits above the sixteenth as well: how the action was made."""
    parms = attribute(2, struct.pack("=IIiiiiI", 900, 0, 4, 0, 0, 1, 4))
    flags = attribute(7, struct.pack("=II", 0x10002, 0x10002))
    action = tc_decode.decode_action(attribute(1, b"mirred\0") + nested(2, parms) + flags)
    assert action is not None
    assert action.flags == ACTION_SKIP_HW


def test_foreign_kinds() -> None:
    assert tc_decode.decode_action(attribute(1, b"gact\0") + nested(2)) is None
    header = struct.pack("=BBHiIII", 0, 0, 0, 3, 0x80000800, 0xFFFFFFF2, (5 << 16) | 0x0300)
    u32_filter = tc_decode.decode_filter(header + attribute(1, b"u32\0") + nested(2))
    assert u32_filter == Filter(3, 5, 0x80000800, "u32", foreign_actions=True)
    table = struct.pack("=BBHiIII", 0, 0, 0, 3, 0x80000000, 0xFFFFFFF2, (5 << 16) | 0x0300)
    assert tc_decode.decode_filter(table + attribute(1, b"u32\0") + nested(2)) is None, "a hash table of u32"


def test_qdiscs() -> None:
    assert tc_decode.decode_qdisc(tc.add_clsact(3).payload) == (3, "clsact")
    with pytest.raises(MalformedError):
        tc_decode.decode_qdisc(bytes(19))


@given(st.binary(max_size=150), st.sampled_from([sent.RULE, sent.KEYS, sent.REDIRECT, sent.BY_ADDRESS]), st.data())
def test_garbage_is_read_or_refused(garbage: bytes, message: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(message)))
    mixed = (garbage, message[:cut], message[:cut] + garbage, message[:cut] + garbage + message[cut:])
    for payload in mixed:
        for decode in (tc_decode.decode_filter, tc_decode.decode_qdisc, sent.actions_of):
            with suppress(MalformedError):
                decode(payload)
        with suppress(MalformedError):
            tc_decode.FilterReader().read(3, [datagram([message, payload])])


def test_what_cannot_be_written() -> None:
    for rule in (replace(RULE, kind="u32"), replace(RULE, mac=None)):
        with pytest.raises(ValueError, match="is no flower filter"):
            tc.add_filter(rule)
    with pytest.raises(ValueError, match="the most is 16"):
        tc.add_action(replace(KEY, cookie=bytes(17)))
    with pytest.raises(ValueError, match="sets no tunnel"):
        tc.add_action(replace(KEY, tunnel=None))
    with pytest.raises(ValueError, match=r"a tunnel from 10\.0\.0\.1 to ::1"):
        tc.add_action(replace(KEY, tunnel=Tunnel("10.0.0.1", "::1", 1, 1)))


def test_what_is_tried_of_a_kernel_is_what_the_codec_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime knows no service, so its trial, which the doctor needs as well, writes its messages by itself."""
    tried: dict[int, list[bytes]] = {}
    monkeypatch.setattr(kernel_support, "_write", lambda _, kind, payload: tried.setdefault(kind, []).append(payload))
    assert kernel_support._try_all() == {}

    links = [link_codec.decode_link(payload) for payload in tried.pop(Rtm.NEWLINK)]
    assert [(link.kind, link.vxlan is not None and link.vxlan.external) for link in links if link is not None] == [
        ("bridge", False),
        ("vxlan", True),
    ]
    assert tried.pop(Rtm.NEWQDISC) == [tc.add_clsact(1).payload]
    actions = [action for payload in tried.pop(Rtm.NEWACTION) for action in sent.actions_of(payload)]
    assert actions == [
        Action(ActionKind.TUNNEL_KEY, 1, tunnel=Tunnel("192.0.2.1", "192.0.2.2", 1, 0), standalone=False),
        Action(ActionKind.MIRRED, 1, redirect_to=1, standalone=False),
    ]
    [payload] = tried.pop(Rtm.NEWTFILTER)
    assert tc_decode.decode_filter(payload) == Filter(1, 1, 1, "flower", "02:00:00:00:00:01")
    assert tried == {}
