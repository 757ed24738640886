"""The whole reconciler on a bus in memory and a model kernel: events, repair, audit, queries, shutdown, faults."""

import errno
import json
import os
from dataclasses import replace

import pytest

from schemas.network import (
    DiffReply,
    DiffRequest,
    NetworkStateReply,
    NetworkStateRequest,
    RouteKind,
    RulesReply,
    RulesRequest,
    TcObject,
    TcOperationKind,
)
from schemas.streams import RECONCILERS
from schemas.subjects import RECONCILER_DIFF, RECONCILER_RULES, RECONCILER_STATE
from services._host.instance_lock import namespace_lock_path
from services._host.netlink.objects import Filter
from services._runtime.settings_error import UnusableSettingsError
from services.reconciler.audit_checkpoint import CheckpointFile
from services.reconciler.full_reconcile import Reconciliation
from tests.support.deadline import until
from tests.support.fake_network import UPLINKS, mac
from tests.support.reconciler_lab import memory_lab, replayed

pytestmark = pytest.mark.virtual_time


VTEP, OTHER = "10.255.0.2", "10.255.0.3"


@pytest.fixture
async def lab(tmp_path, monkeypatch):
    lab = memory_lab(tmp_path)
    lab.put_in_place(monkeypatch)
    await lab.listen()
    yield lab
    await lab.bus.close(1)
    await lab.ours.close(1)


async def test_a_mac_becomes_a_rule_and_a_fact(lab):
    async with lab.reconciler() as reconciler:
        await until(lambda: reconciler.loop.last, what="the first pass")
        assert reconciler.not_ready() is None
        lab.network.learn(mac(1), VTEP)
        await until(lambda: lab.rules == {mac(1): VTEP}, what="the rule")
        await until(lambda: replayed(lab.tc) == {mac(1): VTEP}, what="the audit")

    event = lab.tc[-1]
    assert event.verified
    assert event.causes["fdb"] >= 1
    assert (event.desired, event.installed) == (1, 1)
    assert event.digest_before != event.digest_after != ""
    kinds = [operation.object for operation in event.operations]
    assert kinds == [TcObject.CLSACT, TcObject.ACTION, TcObject.ACTION, TcObject.FILTER]
    assert event.operations[-1].device == "rep0"


async def test_the_applications_own_mac_gets_a_static_entry(lab):
    async with lab.reconciler():
        await until(lambda: lab.tc, what="the audit")

    (operation,) = lab.tc[0].operations
    assert (operation.object, operation.mac, operation.after) == (TcObject.FDB, "02:00:00:00:00:01", "static on rep0")


async def test_an_edge_fault_writes_nothing_and_is_told(lab):
    lab.network.learn(mac(1), VTEP)
    lab.network.route(VTEP, *UPLINKS)
    async with lab.reconciler() as reconciler:
        await until(lambda: lab.rules, what="the rule")
        await until(lambda: reconciler.loop.last and reconciler.loop.last.result.verified, what="the first pass")
        writes, looks = lab.network.model.writes, lab.network.looks
        lab.network.route(VTEP, UPLINKS[1])
        await until(lambda: lab.routes, what="the fact")
        assert lab.network.model.writes == writes
        assert lab.network.looks == looks, "only links and routes were read"

    (event,) = lab.routes
    assert (event.kind, event.destination) == (RouteKind.ROUTE, f"{VTEP}/32")
    assert event.before == ("169.254.0.1@p1", "169.254.0.1@p2")
    assert event.after == ("169.254.0.1@p2",)


async def test_what_other_hands_do_is_repaired(lab):
    lab.network.learn(mac(1), VTEP)
    async with lab.reconciler():
        await until(lambda: lab.rules, what="the rule")
        (rule,) = lab.network.model.snapshot().filters
        lab.network.model.remove_filter(rule)
        lab.network.happen("tc")
        await until(lambda: lab.rules == {mac(1): VTEP}, what="the rule, again")
        await until(lambda: lab.tc[-1].causes.get("tc"), what="the audit")


async def test_without_any_event_the_timer_repairs(lab):
    lab.network.learn(mac(1), VTEP)
    lab.settings = lab.settings.model_copy(update={"resync_interval_s": 0.05})
    async with lab.reconciler():
        await until(lambda: lab.rules, what="the rule")
        (rule,) = lab.network.model.snapshot().filters
        lab.network.model.remove_filter(rule)
        await until(lambda: lab.rules == {mac(1): VTEP}, what="the rule, again")


async def test_lost_events_make_everything_be_read_anew(lab):
    async with lab.reconciler() as reconciler:
        await until(lambda: reconciler.loop.last, what="the first pass")
        lab.network.learn(mac(1), VTEP)
        lab.network.events.causes.clear()
        lab.network.events.overrun = True
        await until(lambda: lab.rules == {mac(1): VTEP}, what="the rule")
        assert reconciler.loop.counts.overruns == 1


async def test_what_a_short_dump_has_cost_is_mended_within_the_same_pass(lab, monkeypatch):
    """The kernel says of no dump of forwarding entries that it was short: after writes comes another look."""
    for number in range(20):
        lab.network.learn(mac(number), VTEP)
    reconciliation = Reconciliation(lab.network, lab.settings.forwarding())
    whole = reconciliation.run().snapshot
    looks = iter([replace(whole, fdb=whole.fdb[:2])])
    monkeypatch.setattr(lab.network, "snapshot", lambda: next(looks, None) or lab.network.seen())

    outcome = reconciliation.run()

    kinds = [write.operation.kind for write in outcome.writes if isinstance(write.operation.target, Filter)]
    assert (kinds.count("delete"), kinds.count("add")) == (19, 19)
    assert outcome.verified
    assert lab.rules == {mac(number): VTEP for number in range(20)}


async def test_a_bad_rule_stops_no_other_and_is_told_once(lab):
    def fault(operation):
        target = operation.target
        return errno.EIO if isinstance(target, Filter) and target.mac == mac(2) else 0

    lab.network.model.fault = fault
    for number in range(1, 4):
        lab.network.learn(mac(number), VTEP)
    async with lab.reconciler() as reconciler:
        await until(lambda: lab.rules.keys() == {mac(1), mac(3)}, what="the other rules")
        await until(lambda: lab.network.looks > 10, what="some attempts")
        assert "EIO" in reconciler.not_ready()
        await until(lambda: lab.tc, what="the audit")
        assert sum(o.mac == mac(2) for event in lab.tc for o in event.operations) <= 2, "not at each attempt"
        lab.network.model.fault = None
        await until(lambda: len(lab.rules) == 3, what="all rules")
        await until(lambda: reconciler.not_ready() is None, what="readiness")


async def test_a_kernel_that_lacks_something_is_left_alone(lab):
    lab.network.lacks = "this kernel lacks cls_flower; modprobe cls_flower"
    lab.network.learn(mac(1), VTEP)
    async with lab.reconciler() as reconciler:
        await until(lambda: lab.tc, what="the audit")
        assert lab.network.model.writes == 0, "no half-applied host"
        assert "modprobe cls_flower" in lab.tc[0].problem
        assert "modprobe cls_flower" in reconciler.not_ready()
        lab.network.lacks = None
        reconciler.loop.trigger("signal")
        await until(lambda: lab.rules == {mac(1): VTEP}, what="the rule")


async def test_an_unreadable_kernel_is_asked_again(lab):
    lab.network.unreadable = "there is no network namespace 'x'"
    async with lab.reconciler() as reconciler:
        await until(lambda: reconciler.loop.counts.failed > 2, what="some attempts")
        assert reconciler.not_ready() == "there is no network namespace 'x'"
        lab.network.learn(mac(1), VTEP)
        lab.network.unreadable = ""
        await until(lambda: lab.rules == {mac(1): VTEP}, what="the rule")
        await until(lambda: reconciler.not_ready() is None, what="ready")
        events = lab.network.events
        lab.network.unreadable = "the kernel does not answer"
        lab.network.happen("link")
        await until(lambda: events.closed, what="a new subscription")
        lab.network.unreadable = ""
        lab.network.learn(mac(2), VTEP)
        await until(lambda: len(lab.rules) == 2, what="the next rule")


async def test_writes_whose_answer_is_lost_are_told(lab):
    lab.network.learn(mac(1), VTEP)

    def fail():
        lab.network.before_apply = lambda: None
        lab.network.unreadable = "the kernel has not answered"
        lab.network._check()

    lab.network.before_apply = fail
    async with lab.reconciler() as reconciler:
        await until(lambda: lab.tc, what="the audit")
        assert {operation.errno for operation in lab.tc[0].operations} == {errno.ENOBUFS}
        assert not lab.tc[0].verified
        lab.network.unreadable = ""
        await until(lambda: lab.rules == {mac(1): VTEP}, what="the rule")
        await until(lambda: reconciler.not_ready() is None)


async def test_keep_and_flush(lab):
    lab.network.learn(mac(1), VTEP)
    async with lab.reconciler():
        await until(lambda: lab.rules, what="the rule")
    assert lab.rules == {mac(1): VTEP}

    lab.settings = lab.settings.model_copy(update={"on_shutdown": "flush"})
    writes = lab.network.model.writes
    async with lab.reconciler() as reconciler:
        await until(lambda: reconciler.loop.last, what="the first pass")
        assert lab.network.model.writes == writes, "what was there is adopted"
    assert lab.rules == {}
    await until(lambda: lab.tc[-1].causes == {"shutdown": 1}, what="the audit of the flush")
    assert {operation.operation for operation in lab.tc[-1].operations} == {TcOperationKind.DELETE}


async def test_a_second_one_of_the_namespace_is_refused(lab, tmp_path):
    async with lab.reconciler():
        other = memory_lab(tmp_path, node="n2")
        other.network = lab.network
        with pytest.raises(UnusableSettingsError, match=rf"pid {os.getpid()}, node 'n1'.*kill {os.getpid()}"):
            async with other.reconciler():
                pass
        holder = json.loads(namespace_lock_path(tmp_path, None).read_bytes())
        assert holder["node"] == "n1", "the refused one has changed nothing"
    async with lab.reconciler():
        pass


async def test_a_second_one_of_the_name_is_refused(lab, tmp_path, monkeypatch):
    async with lab.reconciler() as reconciler:
        await until(lambda: reconciler.loop.last, what="the first pass")
        other = memory_lab(tmp_path / "elsewhere")
        other.bus = lab.bus
        with pytest.raises(UnusableSettingsError, match="node name 'n1' is at work already"):
            async with other.reconciler() as second:
                await until(second._runtime.crashed.done, within_s=60, what="the refusal, when the first has renewed")
        entry = await lab.ours.bucket(RECONCILERS).get("n1")
        assert entry is not None, "the refused one takes nothing away"
    assert await lab.ours.bucket(RECONCILERS).get("n1") is None, "signed off"


async def test_queries(lab):
    lab.network.learn(mac(1), VTEP)
    lab.network.learn(mac(2), OTHER)
    async with lab.reconciler() as reconciler:
        await until(lambda: len(lab.rules) == 2 and reconciler.not_ready() is None, what="the rules")
        state = await lab.ask(RECONCILER_STATE, NetworkStateRequest())
        assert isinstance(state, NetworkStateReply)
        assert (state.ports, state.vteps, state.macs) == (("rep0",), (VTEP, OTHER), 2)
        assert (state.installed, state.unmanaged, state.problems) == (2, 0, ())

        rules = await lab.ask(RECONCILER_RULES, RulesRequest(limit=1, offset=1))
        assert isinstance(rules, RulesReply)
        assert rules.total == 2
        assert [(rule.device, rule.mac, rule.vtep, rule.managed) for rule in rules.rules] == [
            ("rep0", mac(2), OTHER, True)
        ]
        assert (await lab.ask(RECONCILER_RULES, RulesRequest(device="eth9"))).total == 0

        assert (await lab.ask(RECONCILER_DIFF, DiffRequest())).total == 0
        writes = lab.network.model.writes
        (rule, _) = lab.network.model.snapshot().filters
        lab.network.model.remove_filter(rule)
        diff = await lab.ask(RECONCILER_DIFF, DiffRequest())
        assert isinstance(diff, DiffReply)
        assert (diff.total, diff.desired, diff.installed) == (1, 2, 1)
        assert diff.operations[0].mac == rule.mac
        assert lab.network.model.writes == writes


async def test_churn_while_the_bus_is_dead_loses_nothing(lab):
    lab.network.learn(mac(0), VTEP)
    async with lab.reconciler() as reconciler:
        await until(lambda: replayed(lab.tc) == {mac(0): VTEP}, what="the first rule")
        lab.bus.broker.stop()
        for number in range(200):
            passes = reconciler.loop.counts.full
            lab.network.forget(mac(number % 7 + 1))
            lab.network.learn(mac(number % 5 + 1), OTHER)
            await until(lambda passes=passes: reconciler.loop.counts.full > passes, what="a pass")
        for number in range(1_000, 2_000):
            lab.network.learn(mac(number), OTHER)
        await until(lambda: len(lab.rules) > 1_000, what="rules without a bus")
        await until(lambda: reconciler.not_ready() is None)
        assert lab.bus.counters["events_pending"] < 300, "passes are put together"
        told = len(lab.tc)
        lab.bus.broker.start()
        await until(lambda: replayed(lab.tc) == lab.rules, what="the whole audit, in order")

    merged = [event for event in lab.tc[told:] if event.first_pass_id < event.pass_id]
    assert merged
    assert all(len(event.operations) <= 500 for event in lab.tc)
    assert any(event.parts > 1 for event in lab.tc), "a thousand at once"
    assert {operation.pass_id for operation in merged[0].operations} <= set(
        range(merged[0].first_pass_id, merged[0].pass_id + 1)
    )
    assert lab.bus.counters.get("events_dropped", 0) == 0


async def test_the_next_incarnation_tells_what_the_bus_never_got(lab):
    """The reconciler ends while there is no bus: its outbox is lost, and readers are told up to where."""
    lab.network.learn(mac(1), VTEP)
    async with lab.reconciler() as reconciler:
        await until(lambda: len(lab.tc) >= 1, what="the first pass")
        lab.bus.broker.stop()
        lab.network.learn(mac(2), VTEP)
        await until(lambda: len(lab.rules) == 2, what="a rule that nobody is told of")
        await until(lambda: reconciler.publisher.pass_id == 2, what="the pass")
    first = lab.tc[0]
    assert (first.previous_incarnation, first.gap) == (0, False), "there was none before"

    lab.bus.broker.start()
    async with lab.reconciler() as reconciler:
        await until(lambda: reconciler.loop.last, what="the first pass")
        await until(lambda: lab.tc[-1].incarnation != first.incarnation, what="its fact")
    news = next(event for event in lab.tc if event.incarnation != first.incarnation)
    assert (news.previous_incarnation, news.previous_pass_id, news.gap) == (first.incarnation, 2, True)


async def test_without_a_loss_the_next_incarnation_tells_no_gap(lab):
    lab.network.learn(mac(1), VTEP)
    async with lab.reconciler() as reconciler:
        await until(lambda: reconciler.publisher.pass_id and not reconciler.publisher.pending_events, what="the audit")
        first = reconciler.publisher.pass_id
    async with lab.reconciler() as reconciler:
        await until(lambda: lab.tc[-1].incarnation == reconciler._incarnation, what="the next one's fact")
    assert (lab.tc[-1].previous_pass_id, lab.tc[-1].gap) == (first, False)


async def test_a_mark_is_set_before_the_kernel_is_written_to(lab):
    """So that kill -9 between the write and the fact leaves a trace."""
    seen = []
    path = namespace_lock_path(lab.settings.state_directory, None).with_suffix(".audit")
    lab.network.before_apply = lambda: seen.append(CheckpointFile(path, 0).previous)
    lab.network.learn(mac(1), VTEP)
    async with lab.reconciler():
        await until(lambda: lab.rules, what="the rule")
    assert seen
    assert all(
        (checkpoint.pass_id, checkpoint.acknowledged_pass_id, checkpoint.gap) == (1, 0, True) for checkpoint in seen
    )


@pytest.mark.parametrize("text", [b"{", b"[1]", b'{"incarnation": 1}', bytes(256)])
def test_an_unreadable_mark_is_a_gap(tmp_path, text):
    (tmp_path / "x.audit").write_bytes(text)
    previous = CheckpointFile(tmp_path / "x.audit", 1).previous
    assert previous is not None
    assert previous.gap


async def test_thousands_of_macs_are_told_in_few_facts(lab):
    lab.settings = lab.settings.model_copy(update={"ports": ()})  # the model kernel takes long for that many rules
    async with lab.reconciler() as reconciler:
        await until(lambda: reconciler.loop.last, what="the first pass")
        for number in range(2_000):
            lab.network.learn(mac(number), VTEP)

        def told():
            return sum(1 + len(event.also) for event in lab.routes if event.kind is RouteKind.FDB)

        await until(lambda: told() == 2_000, what="every MAC")
    assert len(lab.routes) < 100
    assert [event.seq for event in lab.routes] == list(range(1, len(lab.routes) + 1))
