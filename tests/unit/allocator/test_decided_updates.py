"""Decisions name the limit updates that carry them, so that an observer finds what became of each."""

from __future__ import annotations

from collections.abc import Iterable

from schemas.apps import AppSpec
from schemas.limits import LimitDecisions, LimitUpdate
from services.allocator.cycle import Outcome
from tests.support.lossy_cluster import LossyCluster

MIB = 1 << 20
SPEC = AppSpec(name="shop", cpu_limit=2.0, memory_limit=512 * MIB)


class WatchedCluster(LossyCluster):
    """Compares the decisions of every step with the updates that it sends."""

    changes = silent = 0

    def act(self, outcome: Outcome) -> None:
        for decisions in outcome.decisions:
            first, last = decisions.update_seq_first, decisions.update_seq_last
            named = [each for each in outcome.updates if first <= each.seq <= last and each.epoch == decisions.epoch]
            assert wanted(decisions) == sent(named)
            assert bool(named) == bool(first) == bool(last)
            self.changes += len(sent(named))
            self.silent += not named
        super().act(outcome)


def wanted(decisions: LimitDecisions) -> list[tuple[str, int, int]]:
    """Containers whose limits change, and to what; 0: that one does not."""
    rows = [(row["container"], row["quota_to_us"], row["limit_to_bytes"]) for row in decisions.rows()]
    return sorted(row for row in rows if any(row[1:]))


def sent(updates: Iterable[LimitUpdate]) -> list[tuple[str, int, int]]:
    """The same of limit updates."""
    rows = [row for each in updates for row in each.rows()]
    return sorted((row["container"], row["quota_us"], row["limit_bytes"]) for row in rows)


def deliver_all(cluster: LossyCluster) -> None:
    while cluster.network:
        cluster.deliver(0)


def test_each_change_is_in_an_update_that_its_decision_names() -> None:
    """Two nodes, whose load moves from one to the other: each step has an update for either."""
    cluster = WatchedCluster(SPEC)
    for machine in cluster.machines * 2:
        cluster.start_container(machine)
    for period in range(60):
        for number, machine in enumerate(cluster.machines):
            busy = period // 10 % 2 == number
            cluster.run(machine, [(80_000 if busy else 2_000, (60 if busy else 20) * MIB)] * 2)
        deliver_all(cluster)

    assert cluster.changes > 20
    assert cluster.silent > 0, "pools are published once a second, also where nothing changes"


def test_where_nothing_is_sent_no_update_is_named() -> None:
    cluster = LossyCluster(SPEC.model_copy(update={"mode": "observe"}))
    decided: list[LimitDecisions] = []
    cluster.act = lambda outcome: decided.extend(outcome.decisions)
    for machine in cluster.machines:
        cluster.start_container(machine)
    for _ in range(10):
        for machine in cluster.machines:
            cluster.run(machine, [(50_000, 20 * MIB)])
        deliver_all(cluster)

    assert any(wanted(decisions) for decisions in decided)
    assert {(decisions.update_seq_first, decisions.update_seq_last) for decisions in decided} == {(0, 0)}
