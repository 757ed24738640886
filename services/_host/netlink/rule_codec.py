"""Routing policy rules, to and from messages (linux/fib_rules.h)."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from services._host.netlink.attributes import MalformedError, attributes, number, u8, u32
from services._host.netlink.constants import Rtm
from services._host.netlink.messages import CREATE, EXCLUSIVE, Request

_RULE: Final = struct.Struct("=8BI")
"""fib_rule_hdr: family, destination and source length, TOS, table, two reserved, action, flags."""
_PRIORITY, _TABLE, _PROTOCOL = 6, 15, 21
_TO_TABLE: Final = 1


class Rule(NamedTuple):
    """A table is looked up at this point of the order: ``ip rule add pref P lookup T protocol N``."""

    family: int
    table: int
    """0: the rule does something else."""
    priority: int
    protocol: int


def decode_rule(payload: bytes) -> Rule:
    """From RTM_NEWRULE or RTM_DELRULE, without what it selects packets by.

    Raises:
        MalformedError: nonsense.
    """
    if len(payload) < _RULE.size:
        raise MalformedError(f"a rule of {len(payload)} bytes")
    family, _, _, _, table, _, _, _, _ = _RULE.unpack_from(payload)
    found = attributes(payload, _RULE.size)
    return Rule(
        family,
        number(found[_TABLE]) if _TABLE in found else table,
        number(found.get(_PRIORITY, b"\0")),
        number(found.get(_PROTOCOL, b"\0")),
    )


def add_rule(rule: Rule) -> Request:
    """Write a rule for all packets; EEXIST where there is the same."""
    return Request(Rtm.NEWRULE, CREATE | EXCLUSIVE, _encode(rule))


def delete_rule(rule: Rule) -> Request:
    """Remove a rule; ENOENT where there is none."""
    return Request(Rtm.DELRULE, 0, _encode(rule))


def dump_rules(family: int) -> Request:
    """Ask for the rules of a family; EAFNOSUPPORT where the kernel has none for it."""
    return Request(Rtm.GETRULE, 0, _RULE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0))


def _encode(rule: Rule) -> bytes:
    head = _RULE.pack(rule.family, 0, 0, 0, rule.table if rule.table < 256 else 0, 0, 0, _TO_TABLE, 0)
    return head + u32(_PRIORITY, rule.priority) + u32(_TABLE, rule.table) + u8(_PROTOCOL, rule.protocol)
