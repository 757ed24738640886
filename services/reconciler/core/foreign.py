"""Rules of others on our ports: never written, but told of where they and ours meet."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from services._host.netlink.objects import ETH_P_ALL, Filter, Link
from services.reconciler.core.ownership import owns
from services.reconciler.core.problems import Problem, ProblemKind, problem


@dataclass(frozen=True, slots=True)
class Obstacles:
    """What others' rules and qdiscs keep us from."""

    closed: bool = False
    """No rule of ours can be on this port."""
    taken: frozenset[str] = frozenset()
    """MACs that somebody else's rule holds in our preference, where flower takes each only once (EEXIST)."""
    problems: tuple[Problem, ...] = ()


def obstacles_on(port: Link, rules: Iterable[Filter], macs: Collection[str], pref: int) -> Obstacles:
    """What stands in the way of rules for these MACs on a port that has these rules."""
    others = [rule for rule in rules if not owns(rule, pref)]
    holders = [rule for rule in others if rule.pref == pref and rule.chain == 0]
    if any(rule.kind != "flower" or rule.protocol != ETH_P_ALL for rule in holders):
        told = problem(
            ProblemKind.PREF_TAKEN,
            port.name,
            f"an unmanaged rule of another kind or protocol occupies preference {pref}",
            "choose another pref in the reconciler's settings",
        )
        return Obstacles(closed=True, problems=(told,))
    taken = frozenset(rule.mac for rule in holders if rule.mac in macs and rule.mac is not None)
    problems = [*_taken(port, taken, pref), *_shadows(port, others, macs, pref)]
    return Obstacles(taken=taken, problems=tuple(problems))


def no_clsact(port: Link) -> Obstacles:
    """Of a port where an ingress qdisc is."""
    remedy = f"tc qdisc del dev {port.name} ingress"
    told = problem(ProblemKind.INGRESS_QDISC, port.name, "an ingress qdisc takes the place of clsact", remedy)
    return Obstacles(closed=True, problems=(told,))


def _taken(port: Link, macs: frozenset[str], pref: int) -> list[Problem]:
    if not macs:
        return []
    what = f"unmanaged rules match these MACs at preference {pref}, so managed ones are left out"
    return [problem(ProblemKind.RULE_TAKEN, port.name, what, "delete them, or choose another pref", macs)]


def _shadows(port: Link, others: list[Filter], macs: Collection[str], pref: int) -> list[Problem]:
    same = [
        rule for rule in others if rule.mac is not None and rule.mac in macs and rule.pref != pref and not rule.chain
    ]
    before = {rule.mac for rule in same if rule.mac is not None and rule.pref < pref}
    after = {rule.mac for rule in same if rule.mac is not None and rule.pref > pref}
    told = []
    if before:
        what = f"unmanaged rules for the same MACs come before preference {pref}: managed ones match no packet"
        told.append(problem(ProblemKind.SHADOWED, port.name, what, "delete them, or choose a lower pref", before))
    if after:
        what = f"unmanaged rules for the same MACs come after preference {pref} and match no packet"
        told.append(problem(ProblemKind.SHADOWED, port.name, what, "delete them, or choose a higher pref", after))
    return told
