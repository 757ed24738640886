"""What an agent makes a span of, and that it makes none of a sample."""

from __future__ import annotations

import json
from pathlib import Path

from schemas.apps import AppSpec
from schemas.streams import APPS
from services._runtime.telemetry.tracing import Span, span, trace_ids
from services.agent.memory.events import LONGEST_TRACE_NS, TRACE_GAP_NS, TraceGroups
from services.agent.service import Agent
from services.agent.settings import AgentSettings
from services.allocator.service import Allocator
from services.allocator.settings import AllocatorSettings
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.recorded_spans import RecordedSpans, recorded_spans
from tests.support.service_in_process import run_in_process

SCENARIO = [
    {
        "app": "shop",
        "scenario": {"containers": [{"name": "web", "phases": [{"duration_s": 60, "cpu_cores": 0.2}]}]},
        "quota_us": 50_000,
        "limit_bytes": 1 << 28,
    }
]


async def test_a_sample_is_no_span_and_a_decision_is(tmp_path: Path) -> None:
    """Ticks without an order make nothing; an order that the allocator decides is one trace."""
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(SCENARIO))
    broker = MemoryBroker()
    settings = AgentSettings.load({}, node="n1", host="simulated", scenario_file=path)
    bus = MemoryBus(broker)
    await bus.bucket(APPS).put("shop", AppSpec(name="shop", cpu_limit=2, memory_limit=1 << 30))
    async with run_in_process(Agent, settings, MemoryBus(broker)) as agent:
        await until(lambda: agent.node is not None and len(agent.node.containers.managed) == 1)
        with recorded_spans() as idle:
            ticks = agent.node.sampler.samples_taken
            await until(lambda: agent.node.sampler.samples_taken > ticks + 5)
        with recorded_spans() as recorded:
            allocator = AllocatorSettings.load({}, warm_up_s=0.1)
            async with run_in_process(Allocator, allocator, MemoryBus(broker)) as deciding:
                await until(lambda: "respond cmd.limits.{node}" in below("allocator.decide", recorded))
                steps = deciding._allocation.step_count

    assert idle.names() == []
    decided = [each for each in recorded.ended if each.name == "allocator.decide"]
    assert 0 < len(decided) <= steps
    assert all(each.attributes["turnbuckle.limit_updates"] >= 1 for each in decided)


def below(root: str, recorded: RecordedSpans) -> set[str]:
    """Names of what follows from a span."""
    roots = {each.context.trace_id for each in recorded.ended if each.name == root}
    return {each.name for each in recorded.ended if each.context.trace_id in roots}


def step_of(episodes: TraceGroups, now_ns: int) -> Span:
    """One step of what happens to an application."""
    with span("agent.handle_oom", episodes.begin("shop", now_ns, None)) as step:
        episodes.record("shop", step, now_ns)
    return step


def test_steps_in_quick_succession_are_one_trace() -> None:
    with recorded_spans() as recorded:
        episodes = TraceGroups()
        first = step_of(episodes, 0)
        with span("allocator.decide") as order:
            second = step_of(episodes, TRACE_GAP_NS // 2)
        third = step_of(episodes, TRACE_GAP_NS)
        later = step_of(episodes, 2 * TRACE_GAP_NS + 1)
    made = {f"{each.context.span_id:016x}": each for each in recorded.ended}
    found = [made[step.carrier["traceparent"].split("-")[2]] for step in (first, second, third, later)]

    assert [step.trace_id == first.trace_id for step in (second, third, later)] == [True, True, False]
    assert [each.parent is None for each in found] == [True, False, False, True]
    assert [f"{link.context.trace_id:032x}" for link in found[1].links] == [order.trace_id], "what brought it"
    assert not found[2].links


def test_what_an_order_brings_in_answer_stays_below_the_order() -> None:
    with recorded_spans() as recorded:
        episodes = TraceGroups()
        with span("agent.handle_oom", episodes.begin("shop", 0, None)) as first:
            episodes.record("shop", first, 0)
            with span("agent.apply_limits"):
                answered = step_of(episodes, 1_000)
    spans = {each.name: each for each in recorded.ended if each.name != "agent.handle_oom"}
    (last,) = [each for each in recorded.ended if f"{each.context.span_id:016x}" in answered.carrier["traceparent"]]

    assert last.parent.span_id == spans["agent.apply_limits"].context.span_id
    assert not last.links


def test_a_container_that_grows_all_day_fills_many_traces() -> None:
    with recorded_spans():
        episodes = TraceGroups()
        traces = {step_of(episodes, now_ns).trace_id for now_ns in range(0, 3 * LONGEST_TRACE_NS, TRACE_GAP_NS // 2)}

    assert 3 <= len(traces) <= 4


def test_nothing_is_kept_while_nobody_exports() -> None:
    episodes = TraceGroups()
    step_of(episodes, 0)

    assert episodes._open == {}
    assert trace_ids() is None
