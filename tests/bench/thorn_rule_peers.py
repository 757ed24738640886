"""What else could write the same rules: `tc -batch`, and pyroute2 with flower and tunnel_key taught to it.

pyroute2 0.9.7 knows neither (svinota/pyroute2#1284); `teach_pyroute2` adds them through its plugin tables.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from services._host.netns import inside

TC_ACT_PIPE: Final = 3
TUNNEL_KEY_SET: Final = 1
CLSACT_INGRESS: Final = 0xFFFFFFF2
PREF: Final = 7
"""Not the reconciler's: peers write beside it, into a device of their own."""


@dataclass(frozen=True, slots=True)
class PeerRules:
    """Rules as in thesis 3.4.1: one tunnel_key action per VTEP, one mirred action, one filter per MAC address."""

    netns: str
    device: str
    encapsulation: str
    source: str
    vni: int
    tunnels: Sequence[tuple[int, str]]
    """Index of the action, and VTEP."""
    filters: Sequence[tuple[str, int]]
    """MAC address, and index of its tunnel_key action."""
    mirred_index: int = 0x7EE00001


def tc_batch(rules: PeerRules) -> float:
    """Seconds of one `tc -batch` from its start to its end, as a program that shells out would wait."""
    lines = [
        f"actions add action mirred egress redirect dev {rules.encapsulation} index {rules.mirred_index}",
        *(
            f"actions add action tunnel_key set src_ip {rules.source} dst_ip {vtep} id {rules.vni} dst_port 4789 "
            f"index {index}"
            for index, vtep in rules.tunnels
        ),
        *(
            f"filter add dev {rules.device} ingress pref {PREF} protocol all handle {handle} flower dst_mac {mac} "
            f"action tunnel_key index {index} action mirred index {rules.mirred_index}"
            for handle, (mac, index) in enumerate(rules.filters, start=1)
        ),
    ]
    text = "\n".join(lines) + "\n"
    command = ["tc", "-n", rules.netns, "-batch", "-"]
    started_s = time.monotonic()
    subprocess.run(command, input=text, text=True, check=True, capture_output=True)
    return time.monotonic() - started_s


def pyroute2_writes(rules: PeerRules) -> float:
    """Seconds of pyroute2's writes of the filters, one request each as its API has it; actions are made before."""
    teach_pyroute2()
    with _actions(rules), inside(rules.netns):
        from pyroute2 import IPRoute  # noqa: PLC0415 - takes seconds in an emulated machine

        with IPRoute() as ipr:
            index = ipr.link_lookup(ifname=rules.device)[0]
            redirect = {"kind": "mirred", "direction": "egress", "action": "redirect", "index": rules.mirred_index}
            redirect |= {"ifindex": ipr.link_lookup(ifname=rules.encapsulation)[0]}
            started_s = time.monotonic()
            for handle, (mac, tunnel) in enumerate(rules.filters, start=1):
                ipr.tc(
                    "add-filter",
                    "flower",
                    index,
                    handle=handle,
                    parent=CLSACT_INGRESS,
                    prio=PREF,
                    protocol=3,
                    dst_mac=mac,
                    action=[{"kind": "tunnel_key", "index": tunnel}, redirect],
                )
            return time.monotonic() - started_s


def clear(rules: PeerRules) -> None:
    """Take away what a peer wrote, after a look whether it is all there.

    Raises:
        AssertionError: a rule is missing, or another one than asked for.
    """
    command = ["tc", "-n", rules.netns, "-j", "filter", "show", "dev", rules.device, "ingress"]
    shown = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    found = [rule["options"] for rule in shown if "actions" in rule.get("options", {})]
    written = {(rule["keys"]["dst_mac"], rule["actions"][0]["index"], rule["actions"][1]["index"]) for rule in found}
    assert written == {(mac, index, rules.mirred_index) for mac, index in rules.filters}
    _tc(rules, "filter", "del", "dev", rules.device, "ingress")
    indexes = [f"actions del action tunnel_key index {index}" for index, _ in rules.tunnels]
    _tc_lines(rules, [*indexes, f"actions del action mirred index {rules.mirred_index}"])


@contextmanager
def _actions(rules: PeerRules) -> Iterator[None]:
    lines = [
        f"actions add action tunnel_key set src_ip {rules.source} dst_ip {vtep} id {rules.vni} dst_port 4789 index {i}"
        for i, vtep in rules.tunnels
    ]
    mirred = f"actions add action mirred egress redirect dev {rules.encapsulation} index {rules.mirred_index}"
    _tc_lines(rules, [*lines, mirred])
    yield


def _tc(rules: PeerRules, *arguments: str) -> None:
    subprocess.run(["tc", "-n", rules.netns, *arguments], check=True, capture_output=True)


def _tc_lines(rules: PeerRules, lines: Sequence[str]) -> None:
    command = ["tc", "-n", rules.netns, "-batch", "-"]
    subprocess.run(command, input="\n".join(lines) + "\n", text=True, check=True, capture_output=True)


def teach_pyroute2() -> None:
    """Add flower (destination MAC only) and tunnel_key (by index only) to pyroute2's tables."""
    from pyroute2.netlink.rtnl import tcmsg  # noqa: PLC0415 - takes seconds in an emulated machine
    from pyroute2.netlink.rtnl.tcmsg import common_act  # noqa: PLC0415 - as above

    common_act.plugins["tunnel_key"] = _tunnel_key()
    tcmsg.plugins["flower"] = _flower(common_act)


def _tunnel_key() -> types.ModuleType:
    from pyroute2.netlink import NLA_F_NESTED, nla  # noqa: PLC0415 - as above

    class Parameters(nla):  # type: ignore[misc]
        fields = (
            ("index", "I"),
            ("capab", "I"),
            ("action", "i"),
            ("refcnt", "i"),
            ("bindcnt", "i"),
            ("t_action", "i"),
        )

    class Options(nla):  # type: ignore[misc]
        nla_flags = NLA_F_NESTED
        nla_map = (
            ("TCA_TUNNEL_KEY_UNSPEC", "none"),
            ("TCA_TUNNEL_KEY_TM", "hex"),
            ("TCA_TUNNEL_KEY_PARMS", "Parameters"),
        )

    Options.Parameters = Parameters

    def parameters(keywords: dict[str, Any]) -> dict[str, Any]:
        values = {"index": keywords["index"], "action": TC_ACT_PIPE, "t_action": TUNNEL_KEY_SET}
        return {"attrs": [["TCA_TUNNEL_KEY_PARMS", values]]}

    module = types.ModuleType("act_tunnel_key")
    module.options = Options  # type: ignore[attr-defined]
    module.get_parameters = parameters  # type: ignore[attr-defined]
    return module


def _flower(common_act: types.ModuleType) -> types.ModuleType:
    from pyroute2.netlink import NLA_F_NESTED, nla  # noqa: PLC0415 - as above
    from pyroute2.netlink.rtnl.tcmsg import sched_template  # noqa: PLC0415 - as above

    class Options(nla):  # type: ignore[misc]
        nla_flags = NLA_F_NESTED
        nla_map = (
            ("TCA_FLOWER_UNSPEC", "none"),
            ("TCA_FLOWER_CLASSID", "uint32"),
            ("TCA_FLOWER_INDEV", "asciiz"),
            ("TCA_FLOWER_ACT", "tca_act_prio"),
            ("TCA_FLOWER_KEY_ETH_DST", "l2addr"),
            ("TCA_FLOWER_KEY_ETH_DST_MASK", "l2addr"),
        )
        tca_act_prio = common_act.tca_act_prio

    def parameters(keywords: dict[str, Any]) -> dict[str, Any]:
        attributes = [
            ["TCA_FLOWER_KEY_ETH_DST", keywords["dst_mac"]],
            ["TCA_FLOWER_KEY_ETH_DST_MASK", "ff:ff:ff:ff:ff:ff"],
            ["TCA_FLOWER_ACT", common_act.get_tca_action(keywords)],
        ]
        return {"attrs": attributes}

    def fix_request(request: dict[str, Any]) -> None:
        request["info"] = socket.htons(request.get("protocol", 3) & 0xFFFF) | (request.get("prio", 0) << 16)

    module = types.ModuleType("cls_flower")
    module.options, module.get_parameters, module.fix_request = Options, parameters, fix_request  # type: ignore[attr-defined]
    module.stats, module.stats2 = sched_template.stats, sched_template.stats2  # type: ignore[attr-defined]
    return module
