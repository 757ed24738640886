"""Reads tc rules: qdiscs, actions, filters (linux/pkt_cls.h, linux/tc_act/*.h).

10,000 filters are read several times a minute, and nearly all of them are as they were. So a filter's bytes before its
actions, and its actions' bytes, are looked up among those of the last dump before they are taken apart: equal bytes
mean the same. What varies without meaning anything (ages, counters) stands in the actions, which filters share.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from services._host.netlink import tc_codec as tc
from services._host.netlink.attributes import (
    NESTED,
    MalformedError,
    address_text,
    attributes,
    each_attribute,
    mac_text,
    network_number,
    number,
    spans,
    string,
)
from services._host.netlink.constants import Rtm
from services._host.netlink.dump_cache import Varying
from services._host.netlink.messages import framed
from services._host.netlink.objects import ACTION_SKIP_HW, ACTION_SKIP_SW, Action, ActionKind, Filter, Tunnel

_ATTRIBUTE: Final = struct.Struct("=HH")
_MIRRED_PARMS: Final = struct.Struct("=IIiiiiI")
_TUNNEL_PARMS: Final = struct.Struct("=IIiiii")
_PIPE, _STOLEN, _SET, _EGRESS_REDIRECT = 3, 4, 1, 1
_TIMES, _PADDING = 1, 8
"""Of tunnel_key and of mirred alike."""
_PLAIN_TUNNEL: Final = frozenset(
    {
        *(_TIMES, tc.PARMS, _PADDING, tc.KEY_IPV4_SRC, tc.KEY_IPV4_DST, tc.KEY_IPV6_SRC, tc.KEY_IPV6_DST),
        *(tc.KEY_ID, tc.KEY_PORT, tc.KEY_NO_CSUM),
    }
)
_PLAIN_FLOWER: Final = frozenset(
    {1, tc.FLOWER_ACT, tc.FLOWER_ETH_DST, tc.FLOWER_ETH_DST_MASK, tc.FLOWER_FLAGS, tc.FLOWER_IN_HW_COUNT}
)
"""With TCA_FLOWER_CLASSID (1), which matches nothing."""
_U32_HASH_TABLE: Final = 0xFFF


def decode_qdisc(payload: bytes) -> tuple[int, str]:
    """Ifindex and kind, from RTM_NEWQDISC or RTM_DELQDISC.

    Raises:
        MalformedError: nonsense.
    """
    if len(payload) < tc.TCMSG.size:
        raise MalformedError(f"a qdisc of {len(payload)} bytes")
    kind = attributes(payload, tc.TCMSG.size).get(tc.TCA_KIND, b"")
    return int(tc.TCMSG.unpack_from(payload)[1]), string(kind)


def actions_in(payload: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of each entry, in RTM_NEWACTION, RTM_DELACTION or a dump of actions.

    Raises:
        MalformedError: nonsense.
    """
    if len(payload) < tc.TCAMSG.size:
        raise MalformedError(f"actions of {len(payload)} bytes")
    for kind, (start, end) in spans(payload, tc.TCAMSG.size, len(payload)):
        if kind == tc.ACT_TABLE:
            yield from (span for _, span in spans(payload, start, end))


def counters_of_action(entry: bytes) -> list[Varying]:
    """Where an entry holds counters and ages: TCA_ACT_STATS, and the times among its options."""
    found: list[Varying] = []
    for kind, (start, end) in spans(entry, 0, len(entry)):
        if kind == tc.ACT_STATS:
            found.append(Varying(start - 4, end))
        elif kind == tc.ACT_OPTIONS:
            options = spans(entry, start, end)
            found += [Varying(at - 4, until) for option, (at, until) in options if option == _TIMES]
    return found


def decode_action(entry: bytes) -> Action | None:
    """One entry of a table of actions; None where it is of a kind that we do not know.

    Raises:
        MalformedError: nonsense.
    """
    found = attributes(entry)
    try:
        kind = ActionKind(string(found.get(tc.ACT_KIND, b"")))
    except ValueError:
        return None
    options = attributes(found.get(tc.ACT_OPTIONS, b""))
    parms = options.get(tc.PARMS, b"")
    if len(parms) < tc.GENERIC.size:
        raise MalformedError(f"parameters of an action {kind} in {len(parms)} bytes")
    index, _, _, references, bound = tc.GENERIC.unpack_from(parms)
    flags = found.get(tc.ACT_FLAGS, bytes(8))
    return Action(
        kind=kind,
        index=index,
        cookie=found.get(tc.ACT_COOKIE, b""),
        tunnel=_tunnel(options, parms) if kind is ActionKind.TUNNEL_KEY else None,
        redirect_to=_redirect(parms) if kind is ActionKind.MIRRED else 0,
        bound=bound,
        flags=number(flags[:4]) & (ACTION_SKIP_HW | ACTION_SKIP_SW),
        standalone=references > bound,
    )


def _tunnel(options: dict[int, bytes], parms: bytes) -> Tunnel | None:
    if len(parms) < _TUNNEL_PARMS.size:
        raise MalformedError(f"parameters of a tunnel_key action in {len(parms)} bytes")
    _, _, then, _, _, what = _TUNNEL_PARMS.unpack_from(parms)
    source = options.get(tc.KEY_IPV4_SRC) or options.get(tc.KEY_IPV6_SRC)
    destination = options.get(tc.KEY_IPV4_DST) or options.get(tc.KEY_IPV6_DST)
    plain = then == _PIPE and what == _SET and _PLAIN_TUNNEL.issuperset(options)
    if not plain or source is None or destination is None or tc.KEY_ID not in options:
        return None
    return Tunnel(
        source=address_text(source),
        destination=address_text(destination),
        vni=network_number(options[tc.KEY_ID], 4),
        port=network_number(options[tc.KEY_PORT], 2) if tc.KEY_PORT in options else 0,
        checksum=not number(options.get(tc.KEY_NO_CSUM, b"\0")),
    )


def _redirect(parms: bytes) -> int:
    if len(parms) < _MIRRED_PARMS.size:
        raise MalformedError(f"parameters of a mirred action in {len(parms)} bytes")
    _, _, then, _, _, what, ifindex = _MIRRED_PARMS.unpack_from(parms)
    return int(ifindex) if then == _STOLEN and what == _EGRESS_REDIRECT else 0


class _Head(NamedTuple):
    """What stands before the actions of a filter."""

    rule: Filter | None
    """Without actions; None where it is no filter."""
    actions: tuple[int, int]
    """Start and end of the table of actions in the message; (0, 0): none that we look at."""
    options_end: int

    @property
    def actions_last(self) -> bool:
        """As flower writes it: then all that a filter means, but for its actions, stands before them."""
        return self.actions[0] > 0 and self.actions[1] == self.options_end


class _Known(NamedTuple):
    head: _Head
    rule: Filter
    """With actions."""


class _Port(NamedTuple):
    """The last dump of a port."""

    rows: dict[bytes, _Known]
    """By all bytes before the actions."""
    tables: dict[tuple[Action, ...], tuple[Action, ...]]
    """One object for equal actions."""
    actions_at: dict[int, int]
    """Where actions started in the last message of that length: a guess, that is checked."""


class FilterReader:
    """Reads dumps of filters; remembers the last one of each port, so that unchanged rows cost next to nothing."""

    def __init__(self) -> None:
        self._ports: dict[int, _Port] = {}

    def forget_others(self, ports: Collection[int]) -> None:
        """Let go of what is remembered of all ports but these."""
        self._ports = {ifindex: port for ifindex, port in self._ports.items() if ifindex in ports}

    def read(self, ifindex: int, datagrams: Iterable[bytes]) -> tuple[Filter, ...]:
        """Filters in a dump of one port's ingress.

        Raises:
            MalformedError: nonsense.
        """
        reading = _Reading(self._ports.get(ifindex, _Port({}, {}, {})))
        rules = [
            rule
            for data in datagrams
            for kind, _, _, _, start, end in framed(data)
            if kind == Rtm.NEWTFILTER and (rule := reading.read(data, start, end)) is not None
        ]
        self._ports[ifindex] = reading.now
        return tuple(rules)


class _Reading:
    """One dump of one port."""

    def __init__(self, before: _Port) -> None:
        self._before = before
        self.now = _Port({}, {}, before.actions_at)
        self._decoded: dict[bytes, tuple[tuple[Action, ...], bool]] = {}

    def read(self, data: bytes, start: int, end: int) -> Filter | None:
        at = start + self.now.actions_at.get(end - start, 0)
        key = data[start:at]
        known = self._before.rows.get(key) if key else None
        if known is None or not _actions_follow(data, at, start + known.head.options_end, end):
            payload = data[start:end]
            head = _read_head(payload)
            if head.rule is None or not head.actions_last:
                return decode_filter(payload)
            at = head.actions[0] - 4
            self.now.actions_at[end - start] = at
            key, known, at = payload[:at], _Known(head, head.rule), start + at
        actions, foreign = self._table(data[at + 4 : start + known.head.options_end])
        if known.rule.actions is not actions or known.rule.foreign_actions != foreign:
            known = known._replace(rule=_filled(known.rule, actions, foreign=foreign))
        self.now.rows[key] = known
        return known.rule

    def _table(self, table: bytes) -> tuple[tuple[Action, ...], bool]:
        found = self._decoded.get(table)
        if found is None:
            actions, foreign = _decode_table(table)
            actions = self._before.tables.get(actions, actions)
            actions = self.now.tables.setdefault(actions, actions)
            found = self._decoded[table] = (actions, foreign)
        return found


def _decode_table(table: bytes) -> tuple[tuple[Action, ...], bool]:
    """Actions of kinds that we know, in order, and whether there are others."""
    decoded = [decode_action(entry) for _, entry in each_attribute(table)]
    return tuple(action for action in decoded if action is not None), None in decoded


def decode_filter(payload: bytes) -> Filter | None:
    """One filter, from RTM_NEWTFILTER or RTM_DELTFILTER; None for what stands for a whole preference.

    Raises:
        MalformedError: nonsense.
    """
    head = _read_head(payload)
    if head.rule is None or not head.actions[0]:
        return head.rule
    actions, foreign = _decode_table(payload[slice(*head.actions)])
    return _filled(head.rule, actions, foreign=foreign)


def _filled(rule: Filter, actions: tuple[Action, ...], *, foreign: bool) -> Filter:
    return Filter(
        rule.ifindex,
        rule.pref,
        rule.handle,
        rule.kind,
        rule.mac,
        actions,
        foreign,
        rule.chain,
        rule.protocol,
        rule.skip_hw,
        rule.skip_sw,
        rule.in_hw,
    )


def _actions_follow(data: bytes, at: int, options_end: int, end: int) -> bool:
    """Whether the attribute at `at` holds actions and ends just where the options do."""
    if options_end > end or at + 4 > options_end:
        return False
    length, kind = _ATTRIBUTE.unpack_from(data, at)
    return bool(kind & ~NESTED == tc.FLOWER_ACT and at + length == options_end)


def _read_head(payload: bytes) -> _Head:
    if len(payload) < tc.TCMSG.size:
        raise MalformedError(f"a filter of {len(payload)} bytes")
    _, ifindex, handle, _, information = tc.TCMSG.unpack_from(payload)
    found = dict(spans(payload, tc.TCMSG.size, len(payload)))
    kind = string(payload[slice(*found.get(tc.TCA_KIND, (0, 0)))])
    options_at, options_end = found.get(tc.TCA_OPTIONS, (0, 0))
    if not handle or (kind == "u32" and not handle & _U32_HASH_TABLE):
        return _Head(None, (0, 0), 0)
    chain = number(payload[slice(*found[tc.TCA_CHAIN])]) if tc.TCA_CHAIN in found else 0
    what = (ifindex, information >> 16, handle, kind)
    protocol = socket.ntohs(information & 0xFFFF)
    if kind != "flower":
        # What hangs on others is not ours to know.
        return _Head(Filter(*what, foreign_actions=True, chain=chain, protocol=protocol), (0, 0), options_end)
    options = dict(spans(payload, options_at, options_end))
    flags = number(payload[slice(*options[tc.FLOWER_FLAGS])]) if tc.FLOWER_FLAGS in options else 0
    mask = payload[slice(*options.get(tc.FLOWER_ETH_DST_MASK, (0, 0)))]
    exact = _PLAIN_FLOWER.issuperset(options) and mask == b"\xff" * 6 and tc.FLOWER_ETH_DST in options
    rule = Filter(
        *what,
        mac=mac_text(payload[slice(*options[tc.FLOWER_ETH_DST])]) if exact else None,
        chain=chain,
        protocol=protocol,
        skip_hw=bool(flags & tc.SKIP_HW),
        skip_sw=bool(flags & tc.SKIP_SW),
        in_hw=bool(flags & tc.IN_HW) if flags & (tc.IN_HW | tc.NOT_IN_HW) else None,
    )
    return _Head(rule, options.get(tc.FLOWER_ACT, (0, 0)), options_end)
