"""A new owner hands nothing out before every node that may hold a part of the application has been heard."""

from __future__ import annotations

import pytest

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.limits import LimitReply, LimitUpdate
from services.allocator.budget.step_context import StepTime
from services.allocator.cycle import AllocationCycle, Outcome

APP = "shop"
EPOCH = 7
SPEC = AppSpec(name=APP, cpu_limit=0.3, memory_limit=512 << 20)
SECOND_NS = 1_000_000_000
WALL_NS = 1_700_000_000 * SECOND_NS


class Taker:
    """An allocation that takes the application over while nodes a and b are announced."""

    def __init__(self) -> None:
        self.now_ns = 10 * SECOND_NS
        self.seq = 0
        self.allocation = AllocationCycle()
        self.inventory = self.allocation.inventory
        for node in ("a", "b"):
            self.inventory.register(node, 1)
        self.allocation.set_spec(APP, SPEC)
        self.allocation.acquire(APP, EPOCH, self.now_ns)

    @property
    def step_time(self) -> StepTime:
        return StepTime(self.now_ns, WALL_NS + self.now_ns)

    def batch(self, node: str) -> Outcome:
        """One throttled container on the node; it answers what it is asked."""
        outcome = self.tell(node)
        self.answer_fences(node)
        return outcome

    def tell(self, node: str, incarnation: int = 1, *, complete: bool = True) -> Outcome:
        """One throttled container on the node."""
        self.seq += 1
        self.now_ns += SECOND_NS // 10
        columns = {name: [0] for name in CfsBatch.column_types} | {
            "periods": [1],
            "quota_us": [15_000],
            "used_us": [15_000],
            "throttled": [1],
            "throttled_us": [50_000],
            "memory_usage_bytes": [10 << 20],
            "memory_limit_bytes": [200 << 20],
        }
        batch = CfsBatch.build(
            [f"{node}-0"],
            columns,
            app=APP,
            node=node,
            incarnation=incarnation,
            report_seq=self.seq,
            time_ns=self.step_time.wall_ns,
            period_us=100_000,
            host_cpus=2,
            inventory_complete=complete,
        )
        return self.allocation.step([batch], self.step_time)

    def fences(self, node: str) -> list[LimitUpdate]:
        return [fence for fence in self.allocation.fences_due(self.step_time) if fence.node == node]

    def answer_fences(
        self, node: str, keys: tuple[str, ...] | None = None, incarnation: int = 1, *, complete: bool = True
    ) -> None:
        for fence in self.fences(node):
            rows = (f"{node}-0",) if keys is None else keys
            count = len(rows)
            self.seq += 1
            reply = LimitReply.build(
                rows,
                {
                    "quota_us": [15_000] * count,
                    "limit_bytes": [200 << 20] * count,
                    "limit_update_seq": [0] * count,
                    "status": [0] * count,
                },
                node=node,
                incarnation=incarnation,
                report_seq=self.seq,
                epoch=fence.epoch,
                seq=fence.seq,
                apps=fence.apps,
                reserve_given_bytes=(0,) * len(fence.apps),
                reserve_used_bytes=(0,) * len(fence.apps),
                reserve_update_seq=(fence.seq,) * len(fence.apps),
                inventory_complete=complete,
            )
            self.allocation.replies.record(reply, fence, self.step_time.now_ns)

    def raises(self, node: str) -> bool:
        """Whether a throttled container is given more, or a new one anything, within some periods."""
        return any(self.batch(node).updates for _ in range(5))


@pytest.fixture
def taker() -> Taker:
    return Taker()


def test_nothing_is_handed_out_while_a_node_is_silent(taker: Taker) -> None:
    assert not taker.raises("a")
    assert taker.inventory.not_reported == {APP: {"b"}}
    assert taker.allocation.pools().containers.tolist() == [0]


def test_the_silent_nodes_share_is_left_to_it_once_it_has_reported(taker: Taker) -> None:
    taker.batch("a")
    taker.batch("b")

    assert not taker.inventory.not_reported
    assert taker.raises("a")
    assert int(taker.allocation.pools().quota_committed_us[0]) <= SPEC.cpu_limit_us


def test_a_node_that_replies_that_it_holds_nothing_has_reported(taker: Taker) -> None:
    [fence] = taker.fences("b")
    assert (fence.apps, fence.epoch, fence.incarnation, fence.row_count) == ((APP,), EPOCH, 1, 0)
    taker.answer_fences("b", ())

    assert taker.inventory.not_reported == {APP: {"a"}}
    assert taker.raises("a")


def test_an_answer_with_containers_that_are_not_known_yet_waits_for_their_batch(taker: Taker) -> None:
    taker.answer_fences("b", ("b-0",))
    assert taker.inventory.not_reported == {APP: {"a", "b"}}

    taker.batch("b")
    assert taker.inventory.not_reported == {APP: {"a"}}


def test_an_agent_whose_sources_have_not_answered_has_not_said_what_it_holds(taker: Taker) -> None:
    taker.inventory.register("b", 2, sources_pending=True)
    assert taker.fences("b")[0].incarnation == 2
    taker.answer_fences("b", (), incarnation=2, complete=False)
    assert taker.inventory.not_reported == {APP: {"a", "b"}}

    taker.answer_fences("b", (), incarnation=2)
    assert taker.inventory.not_reported == {APP: {"a"}}


def test_the_answer_of_an_older_incarnation_says_nothing(taker: Taker) -> None:
    [fence] = taker.fences("b")
    taker.inventory.register("b", 2)
    reply = LimitReply.build(
        [],
        {"quota_us": [], "limit_bytes": [], "limit_update_seq": [], "status": []},
        node="b",
        incarnation=1,
        report_seq=1,
        epoch=EPOCH,
        seq=fence.seq,
    )
    taker.allocation.replies.record(reply, fence, taker.step_time.now_ns)

    assert "b" in taker.inventory.not_reported[APP]


def test_the_answer_of_a_dead_agent_says_nothing_although_it_is_still_registered(taker: Taker) -> None:
    """What its successor has not named yet may hold more than it has said."""
    fence = taker.fences("b")[0]
    taker.tell("b")
    taker.tell("b", incarnation=2, complete=False)
    reply = LimitReply.build(
        ["b-0"],
        {"quota_us": [15_000], "limit_bytes": [200 << 20], "limit_update_seq": [0], "status": [0]},
        node="b",
        incarnation=1,
        report_seq=2,
        epoch=EPOCH,
        seq=fence.seq,
        apps=fence.apps,
        reserve_given_bytes=(0,),
        reserve_used_bytes=(0,),
        reserve_update_seq=(0,),
    )
    taker.allocation.replies.record(reply, fence, taker.step_time.now_ns)

    assert taker.inventory.not_reported == {APP: {"a", "b"}}


def test_a_node_that_has_not_acknowledged_the_epoch_has_not_reported(taker: Taker) -> None:
    """An older owner's order may still raise what it says."""
    taker.tell("b")
    assert taker.inventory.not_reported == {APP: {"a", "b"}}

    taker.answer_fences("b")
    assert taker.inventory.not_reported == {APP: {"a"}}


def test_a_node_whose_announcement_expires_is_waited_for_no_longer(taker: Taker) -> None:
    taker.inventory.deregister("b")

    assert taker.raises("a")


def test_nodes_that_come_later_are_not_waited_for(taker: Taker) -> None:
    taker.answer_fences("b", ())
    taker.inventory.register("c", 1)

    assert taker.raises("a")


def test_every_registered_node_is_waited_for_anew_by_each_owner(taker: Taker) -> None:
    """What it held when it registered, or was heard before, may have changed under another owner."""
    taker.batch("a")
    taker.answer_fences("b", ())
    taker.allocation.acquire(APP, EPOCH + 1, taker.now_ns)

    assert taker.inventory.not_reported == {APP: {"a", "b"}}


def test_what_is_disowned_is_asked_for_no_longer(taker: Taker) -> None:
    taker.allocation.release(APP)

    assert not taker.inventory.not_reported
    assert not taker.allocation.fences_due(taker.step_time)


def run(taker: Taker, seconds: float, *, node: str = "a") -> None:
    """So long the node reports ten times a second and answers what it is asked."""
    for _ in range(round(seconds * 10)):
        taker.batch(node)


def test_a_registration_that_is_renewed_and_never_acknowledges_is_waited_for_once(taker: Taker) -> None:
    for _ in range(28):
        run(taker, 1)
        taker.inventory.register("b", 1)
    assert not taker.raises("a")

    run(taker, 3)

    assert taker.raises("a")
    assert taker.inventory.set_aside == {(APP, "b")}
    assert "b has not acknowledged" in taker.inventory.warnings(taker.allocation.cluster, APP)[0]


def test_a_new_incarnation_and_a_new_epoch_are_not_waited_for_anew(taker: Taker) -> None:
    for incarnation in range(1, 35):
        run(taker, 1)
        taker.inventory.register("b", incarnation)
    taker.allocation.acquire(APP, EPOCH + 1, taker.now_ns)

    run(taker, 1)

    assert taker.raises("a")


def test_a_node_that_reports_without_acknowledging_is_set_aside(taker: Taker) -> None:
    """What it says counts; the others' limits follow their usage again."""
    for _ in range(350):
        taker.tell("b")
        taker.batch("a")

    assert taker.raises("a")
    assert int(taker.allocation.pools().quota_committed_us[0]) <= SPEC.cpu_limit_us


def test_a_node_that_was_set_aside_counts_again_once_it_acknowledges(taker: Taker) -> None:
    run(taker, 35)
    taker.batch("b")
    run(taker, 1)

    assert not taker.inventory.set_aside
    assert not taker.inventory.warnings(taker.allocation.cluster, APP)
    assert any(taker.batch("b").updates for _ in range(5))


def test_an_owner_that_was_stopped_meanwhile_still_waits(taker: Taker) -> None:
    run(taker, 2)
    taker.now_ns += 120 * SECOND_NS
    run(taker, 2)

    assert not taker.raises("a")


def test_a_node_that_claims_newer_epochs_again_and_again_is_believed_a_few_times(taker: Taker) -> None:
    taker.tell("b")
    lost = 0
    for epoch in range(EPOCH, EPOCH + 100):
        taker.allocation.acquire(APP, epoch, taker.now_ns)
        [fence] = taker.fences("b")
        claim = LimitReply.build(
            [], dict.fromkeys(LimitReply.column_types, ()), node="b", incarnation=1, report_seq=epoch, epoch=epoch,
            seq=fence.seq, stale_apps=(APP,), stale_epochs=(epoch + 1,),
        )  # fmt: skip
        taker.allocation.replies.record(claim, fence, taker.step_time.now_ns)
        lost += len(taker.allocation.drain_lost())
        taker.now_ns += SECOND_NS // 2

    assert lost <= 4 + 50 / 20 + 1
    assert taker.inventory.ignored_claims >= 90
