"""Unmanaged rules on managed ports: never written, reported where they conflict with managed ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from services._host.netlink.objects import ETH_P_ALL, Filter, Link
from services.reconciler.core.ownership import is_managed
from services.reconciler.core.problems import Problem, ProblemKind, problem


@dataclass(frozen=True, slots=True)
class Conflicts:
    """Effects of unmanaged rules and qdiscs on one port."""

    closed: bool = False
    """No managed rule can be on this port."""
    taken: frozenset[str] = frozenset()
    """MACs of unmanaged rules at the configured preference, where flower accepts each only once (EEXIST)."""
    problems: tuple[Problem, ...] = ()


def conflicts_on(port: Link, rules: Iterable[Filter], macs: Collection[str], pref: int) -> Conflicts:
    """Conflicts of a port's unmanaged rules with managed rules for these MACs."""
    others = [rule for rule in rules if not is_managed(rule, pref)]
    holders = [rule for rule in others if rule.pref == pref and rule.chain == 0]
    if any(rule.kind != "flower" or rule.protocol != ETH_P_ALL for rule in holders):
        conflict = problem(
            ProblemKind.PREF_TAKEN,
            port.name,
            f"an unmanaged rule of another kind or protocol occupies preference {pref}",
            "choose another pref in the reconciler's settings",
        )
        return Conflicts(closed=True, problems=(conflict,))
    taken = frozenset(rule.mac for rule in holders if rule.mac in macs and rule.mac is not None)
    problems = [
        *_matched_by_others(port, taken, pref),
        *_wider_matches(port, holders, macs, pref),
        *_shadows(port, others, macs, pref),
    ]
    return Conflicts(taken=taken, problems=tuple(problems))


def ingress_conflict(port: Link) -> Conflicts:
    """Conflict of a port that has an ingress qdisc."""
    remedy = f"tc qdisc del dev {port.name} ingress"
    conflict = problem(ProblemKind.INGRESS_QDISC, port.name, "an ingress qdisc takes the place of clsact", remedy)
    return Conflicts(closed=True, problems=(conflict,))


def _matched_by_others(port: Link, macs: frozenset[str], pref: int) -> list[Problem]:
    if not macs:
        return []
    what = f"unmanaged rules match these MACs at preference {pref}, so managed ones are left out"
    return [problem(ProblemKind.RULE_TAKEN, port.name, what, "delete them, or choose another pref", macs)]


def _wider_matches(port: Link, holders: list[Filter], macs: Collection[str], pref: int) -> list[Problem]:
    """Rules that share the preference and match more, or something else, than one MAC.

    Flower takes both. Of rules with different masks the one whose mask came first wins (fl_classify in cls_flower.c).
    """
    if not macs or all(rule.mac is not None for rule in holders):
        return []
    what = f"unmanaged rules at preference {pref} match more than one MAC: the older rule wins"
    return [problem(ProblemKind.SHADOWED, port.name, what, "delete them, or choose another pref")]


def _shadows(port: Link, others: list[Filter], macs: Collection[str], pref: int) -> list[Problem]:
    same = [
        rule for rule in others if rule.mac is not None and rule.mac in macs and rule.pref != pref and not rule.chain
    ]
    before = {rule.mac for rule in same if rule.mac is not None and rule.pref < pref}
    after = {rule.mac for rule in same if rule.mac is not None and rule.pref > pref}
    found = []
    if before:
        what = f"unmanaged rules for the same MACs come before preference {pref}: managed ones match no packet"
        found.append(problem(ProblemKind.SHADOWED, port.name, what, "delete them, or choose a lower pref", before))
    if after:
        what = f"unmanaged rules for the same MACs come after preference {pref} and match no packet"
        found.append(problem(ProblemKind.SHADOWED, port.name, what, "delete them, or choose a higher pref", after))
    return found
