"""The kernel adapter against a kernel that has flower and tunnel_key: run in the machine by test_thorn_vm.py.

What is written is compared with what `tc -j` shows, what `tc` writes with what is read; and what the core's rules rest
on (refusals, cookies, replacement in place, devices that go away) is shown to hold.
"""

from __future__ import annotations

import errno
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from services._host.netlink.constants import Group, Rtm
from services._host.netlink.objects import ACTION_SKIP_HW, ACTION_SKIP_SW, Action, ActionKind, Clsact, Tunnel
from services._host.netlink.socket import Ack, Message, NetlinkSocket
from services._host.netlink.tc_codec import dump_filters
from services._host.netlink.tc_decode import decode_filter
from services.reconciler.adapters.kernel import Kernel
from services.reconciler.core.operation import Operation, Phase, Target
from tests.lab.vm.guest_codec_ground import ADD, DELETE, MAC, NETNS, OTHER, PREF, REPLACE, V6, Ground, settle, shown, tc


@pytest.fixture(scope="module")
def made() -> Iterator[Ground]:
    made = Ground()
    yield made
    made.close()


@pytest.fixture
def ground(made: Ground) -> Ground:
    made.reset()
    return made


@pytest.fixture
def ruled(ground: Ground) -> Ground:
    """With a rule for MAC: filter 1, key 1, redirect 900."""
    for target in (ground.key(), ground.redirect(), ground.rule(1, MAC, ground.key(), ground.redirect())):
        assert ground.told(ADD, target) == Ack(0)
    return ground


def test_tc_shows_what_we_write(ruled: Ground) -> None:
    ruled.told(ADD, ruled.key(2, cookie=b"", tunnel=V6))
    [row] = shown("filter", "show", "dev", "rep0", "ingress")
    options = row["options"]
    assert (row["protocol"], row["pref"], row["kind"], row["chain"]) == ("all", PREF, "flower", 0)
    assert (options["handle"], options["keys"], options["not_in_hw"]) == (1, {"dst_mac": MAC}, True)
    key = {"kind": "tunnel_key", "mode": "set", "src_ip": "10.255.0.1", "dst_ip": "10.255.0.2", "key_id": 100}
    key |= {"dst_port": 4789, "flag": "csum", "index": 1, "bind": 1, "cookie": (b"THRN" + bytes(8)).hex()}
    redirect = {"kind": "mirred", "mirred_action": "redirect", "direction": "egress", "to_dev": "vxenc0"}
    redirect |= {"index": 900, "bind": 1, "cookie": b"THRN".hex()}
    first, second = options["actions"]
    assert first | key == first
    assert second | redirect == second
    assert [action["control_action"]["type"] for action in (first, second)] == ["pipe", "stolen"]
    [table] = shown("actions", "list", "action", "tunnel_key")
    [other] = [action for action in table["actions"] if action["index"] == 2]
    expected = {"src_ip": V6.source, "dst_ip": V6.destination, "key_id": 0xFFFFFF, "dst_port": 4790, "flag": "nocsum"}
    assert other | expected | {"ref": 1, "bind": 0} == other


def test_what_we_write_we_read(ruled: Ground) -> None:
    bound = {"bound": 1, "standalone": True}
    actions = (ruled.key(**bound), ruled.redirect(**bound))
    assert ruled.filters() == (ruled.rule(1, MAC, *actions, in_hw=False),)
    assert set(ruled.kernel.actions()) == set(actions)
    assert ruled.kernel.hooks() == (frozenset({ruled.port}), frozenset())
    other = ruled.key(2, cookie=b"", tunnel=V6)
    ruled.told(ADD, other)
    assert ruled.action(2) == other


def test_we_read_what_tc_writes(ground: Ground) -> None:
    device = ground.ifindex("vxenc0")
    flower = ["filter", "add", "dev", "rep0", "ingress", "protocol", "all", "pref", "7", "handle"]
    key = ["tunnel_key", "set", "src_ip", "10.0.0.1", "dst_ip", "10.0.0.2", "id", "5", "dst_port", "4789"]
    redirect = ["mirred", "egress", "redirect", "dev", "vxenc0"]
    tc(
        *flower,
        "1",
        "flower",
        "dst_mac",
        MAC,
        "action",
        *key,
        "nocsum",
        "index",
        "3",
        "cookie",
        "aa",
        "action",
        *redirect,
    )
    tc(*flower, "2", "flower", "dst_mac", "02:00:00:00:00:00/ff:ff:ff:ff:ff:00", "action", "drop")
    tc(*flower, "3", "flower", "dst_mac", MAC, "src_mac", MAC, "action", *redirect)
    tc(*flower, "4", "flower", "skip_hw", "dst_mac", "02:00:00:00:00:04", "classid", "1:1", "action", *key, "tos", "4")
    tc(*flower, "5", "flower", "dst_mac", "02:00:00:00:00:05", "action", "mirred", "egress", "mirror", "dev", "vxenc0")
    tc(*flower, "6", "flower", "dst_mac", "02:00:00:00:00:06")
    found = {rule.handle: rule for rule in ground.filters()}
    assert {handle: (rule.mac, rule.foreign_actions) for handle, rule in found.items()} == {
        1: (MAC, False),
        2: (None, True),
        3: (None, False),
        4: ("02:00:00:00:00:04", False),
        5: ("02:00:00:00:00:05", False),
        6: ("02:00:00:00:00:06", False),
    }
    [three, mirred] = found[1].actions
    tunnel = Tunnel("10.0.0.1", "10.0.0.2", 5, 4789, checksum=False)
    assert three == Action(ActionKind.TUNNEL_KEY, 3, b"\xaa", tunnel, bound=1, standalone=False)
    assert (mirred.redirect_to, mirred.bound, mirred.standalone, mirred.managed) == (device, 1, False, False)
    assert (found[4].skip_hw, found[4].skip_sw, found[4].actions[0].tunnel) == (True, False, None), (
        "it sets a TOS as well"
    )
    assert (found[5].actions[0].redirect_to, found[6].actions) == (0, ()), "a copy is no redirect"
    assert not any(rule.managed for rule in found.values())
    assert {rule.pref for rule in found.values()} == {7}


def test_a_known_filter_is_read_as_anew(ruled: Ground) -> None:
    """The reader looks bytes up that it has seen: whatever somebody changes, it has to see."""
    tc("filter", "add", "dev", "rep0", "ingress", "protocol", "all", "pref", "7", "matchall", "action", "drop")
    change = ("filter", "replace", "dev", "rep0", "ingress", "protocol", "all", "pref", "100", "handle", "1", "flower")
    changes = (
        ("actions", "replace", "action", "mirred", "egress", "redirect", "dev", "app", "index", "900"),
        (
            *change,
            "dst_mac",
            "02:00:00:00:00:99",
            "action",
            "tunnel_key",
            "index",
            "1",
            "action",
            "mirred",
            "index",
            "900",
        ),
        (*change, "dst_mac", "02:00:00:00:00:99", "action", "drop"),
        (*change, "dst_mac", MAC, "action", "drop"),
        (*change, "dst_mac", MAC, "skip_hw", "action", "drop"),
        (*change, "dst_mac", MAC),
        ("filter", "del", "dev", "rep0", "ingress", "pref", "100"),
    )
    seen = [ruled.filters()]
    for change in changes:
        tc(*change)
        settle(ruled)
        assert ruled.filters() == ruled.filters()
        fresh = Kernel(NETNS)
        assert ruled.filters() == fresh.filters([ruled.port])
        fresh.close()
        seen.append(ruled.filters())
    assert len(set(seen)) == len(seen)
    assert [rule.kind for rule in seen[-1]] == ["matchall"]


def test_a_mac_once_per_preference(ruled: Ground) -> None:
    actions = (ruled.key(), ruled.redirect())
    assert ruled.errno(ADD, ruled.rule(2, MAC, *actions)) == errno.EEXIST
    assert ruled.errno(ADD, ruled.rule(1, OTHER, *actions)) == errno.EEXIST, "that handle is taken"
    assert ruled.errno(ADD, ruled.rule(2, MAC, *actions, pref=101)) == 0
    assert ruled.errno(DELETE, ruled.rule(2, MAC, pref=101)) == 0
    assert ruled.errno(DELETE, ruled.rule(2, MAC, pref=101)) == errno.ENOENT
    assert ruled.errno(DELETE, ruled.rule(7, MAC)) == errno.ENOENT


def test_a_missing_action_is_refused_and_leaves_nothing(ruled: Ground) -> None:
    for actions in ((ruled.key(77), ruled.redirect()), (ruled.key(), ruled.redirect(77))):
        assert ruled.errno(ADD, ruled.rule(2, OTHER, *actions)) == errno.EINVAL
    assert {action.index for action in ruled.kernel.actions()} == {1, 900}
    assert [rule.handle for rule in ruled.filters()] == [1]
    assert {action.bound for action in ruled.kernel.actions()} == {1}


def test_a_bound_action_cannot_be_deleted_and_outlives_its_filters(ruled: Ground) -> None:
    assert ruled.errno(DELETE, ruled.key()) == errno.EPERM
    assert ruled.errno(ADD, ruled.key()) == errno.EEXIST
    assert ruled.errno(DELETE, ruled.rule(1, MAC)) == 0
    assert ruled.errno(DELETE, Clsact(ruled.port)) == 0
    settle(ruled)
    assert {(action.index, action.bound, action.standalone) for action in ruled.kernel.actions()} == {
        (1, 0, True),
        (900, 0, True),
    }
    assert ruled.errno(DELETE, ruled.key()) == 0
    assert ruled.errno(DELETE, ruled.key()) == errno.ENOENT
    assert {action.index for action in ruled.kernel.actions()} == {900}


def test_an_action_is_replaced_in_place_and_keeps_or_takes_a_cookie(ruled: Ground) -> None:
    longest = b"THRN" + bytes(range(12))
    moved = ruled.key(destination="10.255.0.3", cookie=longest)
    assert ruled.errno(REPLACE, moved) == 0
    [rule] = ruled.filters()
    assert rule.actions[0] == replace(moved, bound=1)
    assert ruled.errno(ADD, ruled.key(2, cookie=bytes(17))) == errno.EINVAL
    ruled.told(REPLACE, replace(moved, cookie=b""))
    assert ruled.action(1).cookie == longest, "without a cookie the old one stays"


def test_a_filter_is_replaced_in_place(ruled: Ground) -> None:
    ruled.told(ADD, ruled.key(2, "10.255.0.3"))
    assert ruled.errno(REPLACE, ruled.rule(1, MAC, ruled.key(2), ruled.redirect())) == 0
    settle(ruled)
    [rule] = ruled.filters()
    assert (rule.handle, rule.mac, [action.index for action in rule.actions]) == (1, MAC, [2, 900])
    assert (ruled.action(1).bound, ruled.action(2).bound, ruled.action(900).bound) == (0, 1, 1)
    assert ruled.errno(REPLACE, ruled.rule(1, MAC, ruled.key(77), ruled.redirect())) == errno.EINVAL
    assert ruled.filters() == (rule,), "a failed replacement changes nothing"
    assert ruled.errno(REPLACE, ruled.rule(1, OTHER, ruled.key(2), ruled.redirect())) == 0
    assert [found.mac for found in ruled.filters()] == [OTHER]


def test_a_deleted_device_leaves_a_redirect_to_nowhere(ruled: Ground) -> None:
    subprocess.run(["ip", "-n", NETNS, "link", "del", "vxenc0"], check=True)
    [rule] = ruled.filters()
    assert (rule.actions[1].redirect_to, ruled.action(900).redirect_to) == (0, 0)
    subprocess.run(["ip", "-n", NETNS, "link", "del", "rep0"], check=True)
    assert ruled.filters() == ()
    assert ruled.kernel.hooks()[0] == frozenset()
    settle(ruled)
    assert ruled.errno(ADD, ruled.rule(5, MAC)) in {errno.ENODEV, errno.EINVAL}
    assert {action.bound for action in ruled.kernel.actions()} == {0}


def test_skip_sw_needs_hardware(ruled: Ground) -> None:
    flagged = {"flags": ACTION_SKIP_SW, "cookie": b"THRN"}
    rule = ruled.rule(2, OTHER, ruled.key(2, **flagged), ruled.redirect(901, **flagged), skip_sw=True)
    assert ruled.errno(ADD, rule) in {errno.EOPNOTSUPP, errno.EINVAL}
    assert ruled.errno(ADD, ruled.key(3, flags=ACTION_SKIP_SW)) in {errno.EOPNOTSUPP, errno.EINVAL}
    assert [found.handle for found in ruled.filters()] == [1]
    deadline = time.monotonic() + 60
    while len(ruled.kernel.actions()) > 2 and time.monotonic() < deadline:
        pass  # what the refused filter had made goes a moment later
    assert {action.index for action in ruled.kernel.actions()} == {1, 900}


def test_skip_hw_writes_its_actions_in_full(ruled: Ground) -> None:
    """The first filter makes them, cookie and index included, and the others bind them; standalone ones do not fit."""
    mixed = ruled.rule(2, OTHER, ruled.key(), ruled.redirect(), skip_hw=True)
    assert ruled.told(ADD, mixed) == Ack(errno.EINVAL, "Mismatch between action and filter offload flags")
    key, redirect = ruled.key(2, flags=ACTION_SKIP_HW), ruled.redirect(901, flags=ACTION_SKIP_HW)
    for handle, mac in ((2, OTHER), (3, "02:00:00:00:00:04")):
        assert ruled.told(ADD, ruled.rule(handle, mac, key, redirect, skip_hw=True)) == Ack(0)
    one, two = (rule for rule in ruled.filters() if rule.handle > 1)
    assert one.actions == two.actions
    assert (one.skip_hw, one.managed, one.in_hw) == (True, True, False)
    assert {(action.index, action.bound, action.standalone, action.managed) for action in one.actions} == {
        (2, 2, False, True),
        (901, 2, False, True),
    }
    for handle in (2, 3):
        assert ruled.errno(DELETE, ruled.rule(handle, MAC)) == 0
    settle(ruled)
    assert {action.index for action in ruled.kernel.actions()} == {1, 900}, "made by a filter, gone with the last"


def test_standalone_actions_with_the_flag_fit_filters_with_it(ruled: Ground) -> None:
    key, redirect = ruled.key(2, flags=ACTION_SKIP_HW), ruled.redirect(901, flags=ACTION_SKIP_HW)
    assert (ruled.told(ADD, key), ruled.told(ADD, redirect)) == (Ack(0), Ack(0))
    assert {ruled.action(index).flags for index in (2, 901)} == {ACTION_SKIP_HW}
    assert ruled.told(ADD, ruled.rule(2, OTHER, key, redirect, skip_hw=True)) == Ack(0)
    assert ruled.told(ADD, ruled.rule(3, "02:00:00:00:00:04", key, redirect)).errno == errno.EINVAL


def test_one_refusal_stops_none_of_a_batch(ground: Ground) -> None:
    key, redirect = ground.key(), ground.redirect()
    macs = [f"02:00:00:01:{number >> 8:02x}:{number & 0xFF:02x}" for number in range(300)]
    rules = [ground.rule(1 + handle, mac, key, redirect) for handle, mac in enumerate(macs)]
    missing = ground.rule(1_000, "02:00:00:02:00:00", ground.key(77), redirect)
    targets: list[Target] = [key, redirect, *rules[:150], missing, rules[0], *rules[150:]]
    errnos = ground.kernel.apply([Operation(ADD, target, Phase.MISSING) for target in targets])
    assert errnos == [0] * 152 + [errno.EINVAL, errno.EEXIST] + [0] * 150
    assert sorted(rule.mac or "" for rule in ground.filters()) == macs
    assert ground.action(1).bound == 300
    errnos = ground.kernel.apply([Operation(DELETE, rule, Phase.STALE) for rule in rules])
    assert errnos == [0] * 300


def test_a_probe_sees_rules_deleted_or_led_elsewhere(ruled: Ground) -> None:
    ruled.told(ADD, ruled.key(2, "10.255.0.3"))
    probe = ruled.kernel.probe()
    assert ruled.kernel.probe() == probe
    ruled.told(REPLACE, ruled.rule(1, MAC, ruled.key(2), ruled.redirect()))
    moved = ruled.kernel.probe()
    assert moved != probe
    tc("filter", "del", "dev", "rep0", "ingress", "protocol", "all", "pref", "100", "handle", "1", "flower")
    settle(ruled)
    assert ruled.kernel.probe() not in (probe, moved)


def test_a_terse_dump_has_handles_and_cookies_only(ruled: Ground) -> None:
    with NetlinkSocket(NETNS) as socket:
        whole = [m.payload for m in socket.dump(dump_filters(ruled.port))]
        terse = [m.payload for m in socket.dump(dump_filters(ruled.port, terse=True))]
        assert [len(m.payload) for m in socket.dump(dump_filters(ruled.port, pref=7))] == []
    assert 0 < len(terse[-1]) < len(whole[-1])
    rule = decode_filter(whole[-1])
    assert rule is not None
    assert rule.mac == MAC
    assert b"THRN" in terse[-1]
    assert bytes.fromhex(MAC.replace(":", "")) not in terse[-1]


def test_events_tell_of_filters_and_whose_write_it_was(ruled: Ground) -> None:
    with ruled.kernel.subscribe([Group.TC]) as events:
        ruled.told(DELETE, ruled.rule(1, MAC))
        tc("filter", "add", "dev", "rep0", "ingress", "pref", "9", "flower", "dst_mac", OTHER, "action", "drop")
        seen: list[Message] = []
        deadline = time.monotonic() + 60
        while not any(b"gact" in m.payload for m in seen) and time.monotonic() < deadline:
            received = events.read()
            assert not received.overrun
            seen += received.messages
    seen = [m for m in seen if m.kind in {Rtm.NEWTFILTER, Rtm.DELTFILTER}]
    rules = [(m.kind, decode_filter(m.payload), m.port_id == ruled.kernel.port_id) for m in seen]
    told = [(kind, rule.mac, mine) for kind, rule, mine in rules if rule is not None]
    assert told == [(Rtm.DELTFILTER, MAC, True), (Rtm.NEWTFILTER, OTHER, False)]
