"""What a host reports of containers that it has not, or whose limits it does not lower, takes little of others."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.limits import LimitReply, LimitUpdate
from services.allocator.budget.step_context import StepTime
from services.allocator.cycle import DEFIED, AllocationCycle

APP = "bank"
SPEC = AppSpec(name=APP, cpu_limit=2.0, memory_limit=1 << 30)
MIB = 1 << 20
PERIOD_NS = 100_000_000
WALL_NS = 1_700_000_000_000_000_000


@dataclass
class Agent:
    """One node with one container, which wants a core more than it has."""

    name: str
    quota_us: int = 20_000
    limit_bytes: int = 200 * MIB
    usage_bytes: int = 50 * MIB
    applies: bool = True
    """False: it says that it has carried out each order, and holds what it did."""
    acknowledges: bool = True
    """False: it does not answer at all."""
    reserve_bytes: int = 0
    """Claimed."""
    seq: int = 0
    accepted: int = 0

    def batch(self, now_ns: int) -> CfsBatch:
        self.seq += 1
        columns = {name: [0] for name in CfsBatch.column_types} | {
            "periods": [1],
            "quota_us": [self.quota_us],
            "used_us": [self.quota_us],
            "throttled": [1],
            "throttled_us": [50_000],
            "memory_usage_bytes": [self.usage_bytes],
            "memory_limit_bytes": [self.limit_bytes],
            "limit_update_seq": [self.accepted],
        }
        return CfsBatch.build(
            [f"{self.name}-0"], columns, app=APP, node=self.name, incarnation=1, report_seq=self.seq,
            time_ns=WALL_NS + now_ns, period_us=100_000, host_cpus=64, reserve_given_bytes=self.reserve_bytes,
        )  # fmt: skip

    def reply(self, update: LimitUpdate) -> LimitReply:
        self.seq += 1
        self.accepted = max(self.accepted, update.seq)
        if self.applies:
            for row in update.rows():
                self.quota_us, self.limit_bytes = (
                    row["quota_us"] or self.quota_us,
                    row["limit_bytes"] or self.limit_bytes,
                )
        keys = update.keys or [f"{self.name}-0"]
        columns = {"quota_us": self.quota_us, "limit_bytes": self.limit_bytes, "limit_update_seq": self.accepted}
        apps = () if update.row_count else update.apps
        return LimitReply.build(
            keys, {name: [value] for name, value in columns.items()} | {"status": [0]}, node=self.name, incarnation=1,
            report_seq=self.seq, epoch=update.epoch, seq=update.seq, apps=apps,
            reserve_given_bytes=(max(self.reserve_bytes, *update.reserve_given_bytes, 0),) * len(apps),
            reserve_used_bytes=(0,) * len(apps), reserve_update_seq=(update.seq,) * len(apps),
        )  # fmt: skip


class Owner:
    """An allocation of these nodes, all registered."""

    def __init__(self, *agents: Agent, capacity: tuple[int, int] = (6_400_000, 64 << 30)) -> None:
        self.agents = {agent.name: agent for agent in agents}
        self.now_ns = 10 * PERIOD_NS
        self.allocation = AllocationCycle()
        for agent in agents:
            self.allocation.inventory.register(agent.name, 1, capacity=capacity)
        self.allocation.set_spec(APP, SPEC)
        self.allocation.acquire(APP, 7, self.now_ns)

    @property
    def time(self) -> StepTime:
        return StepTime(self.now_ns, WALL_NS + self.now_ns)

    def run(self, seconds: float) -> None:
        for tick in range(round(seconds * 10)):
            self.now_ns += PERIOD_NS
            outcome = self.allocation.step([agent.batch(self.now_ns) for agent in self.agents.values()], self.time)
            fences = self.allocation.fences_due(self.time) if tick % 3 == 0 else ()
            for update in (*outcome.updates, *fences):
                agent = self.agents[update.node]
                if agent.acknowledges:
                    self.allocation.replies.record(agent.reply(update), update, self.time.now_ns)
                else:
                    self.allocation.replies.record_timeout(update)

    def counted(self) -> tuple[int, int]:
        pools = self.allocation.pools()
        return int(pools.quota_committed_us[0]), int(pools.limit_committed_bytes[0])


def claimant(**values: object) -> Agent:
    return Agent("gpu-01", **({"quota_us": 1_000_000, "limit_bytes": 3 << 30} | values))  # type: ignore[arg-type]


def test_two_honest_nodes_share_the_limit() -> None:
    honest = Agent("gpu-02"), Agent("gpu-03")
    owner = Owner(*honest)
    owner.run(10)

    assert sum(agent.quota_us for agent in honest) == pytest.approx(SPEC.cpu_limit_us, rel=0.1)
    assert owner.allocation.cluster.claim_bounds == {}


@pytest.mark.parametrize(("applies", "acknowledges"), [(False, True), (False, False)])
def test_a_claim_that_is_not_lowered_takes_an_equal_part_by_node_at_most(applies: bool, acknowledges: bool) -> None:
    """Whether the node says that it has lowered it, or nothing."""
    honest = Agent("gpu-02")
    owner = Owner(honest, claimant(applies=applies, acknowledges=acknowledges))
    owner.run(60)

    assert honest.quota_us >= SPEC.cpu_limit_us * 0.45
    assert honest.limit_bytes >= 100 * MIB
    quota_us, limit_bytes = owner.counted()
    assert quota_us <= SPEC.cpu_limit_us
    assert limit_bytes <= SPEC.memory_limit
    assert any("gpu-01" in each for each in owner.allocation.inventory.warnings(owner.allocation.cluster, APP))


def test_a_claim_counts_at_most_what_its_host_has() -> None:
    honest = Agent("gpu-02")
    owner = Owner(honest, claimant(acknowledges=False), capacity=(50_000, 128 * MIB))
    owner.run(60)

    bound = owner.allocation.cluster.claim_bounds
    assert list(bound.values()) == [(50_000, 128 * MIB)]
    assert honest.quota_us >= SPEC.cpu_limit_us * 0.65


def test_a_reserve_is_claimed_within_the_same_bound() -> None:
    honest = Agent("gpu-02")
    owner = Owner(honest, claimant(acknowledges=False, limit_bytes=64 * MIB, reserve_bytes=1 << 40))
    owner.run(60)

    assert owner.counted()[1] <= SPEC.memory_limit
    assert honest.limit_bytes >= 100 * MIB


def test_a_node_that_lowers_its_limits_again_counts_in_full() -> None:
    honest, other = Agent("gpu-02"), claimant(applies=False)
    owner = Owner(honest, other)
    owner.run(60)
    assert owner.allocation.cluster.claim_bounds

    other.applies = True
    owner.run(5)

    assert owner.allocation.cluster.claim_bounds == {}
    assert honest.quota_us + other.quota_us <= SPEC.cpu_limit_us


def test_a_decrease_that_others_undo_now_and_then_is_no_defiance() -> None:
    honest, other = Agent("gpu-02"), Agent("gpu-03")
    owner = Owner(honest, other)
    for _ in range(2 * DEFIED):
        owner.run(1)
        other.quota_us += 30_000

    assert owner.allocation.cluster.claim_bounds == {}
