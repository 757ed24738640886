"""The subject table against what each service does on a recording bus: an entry too few fails, and one too many.

The fast path sends only from its own processes: tests/kernel has it, and the server grants it one subject.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.apps import AppSpec
from schemas.network import DiffReply, DiffRequest, NetworkStateReply, NetworkStateRequest, RulesReply, RulesRequest
from schemas.oom import MemoryReply
from schemas.permissions import _ASKS, _BUCKET_USES, _LOOKS_UP, _REPLAYS, _STORE_USES, Role
from schemas.predictions import PredictRequest, RankRequest
from schemas.queries import AppState, ExplainReply, ExplainRequest, StateReply
from schemas.registry import (
    ADVISOR_PREDICT,
    ADVISOR_RANK,
    ALLOCATOR_EXPLAIN,
    ALLOCATOR_STATE,
    CHANNELS,
    ENDPOINTS,
    Delivery,
)
from schemas.streams import APPS, STREAMS
from schemas.subjects import (
    JOB_RECORDS,
    LIMIT_UPDATES,
    MEMORY_REQUESTS,
    RECONCILER_DIFF,
    RECONCILER_RULES,
    RECONCILER_STATE,
    wildcard,
)
from services._runtime.bus.api import Bus
from services.advisor.ports import TrainingSet
from services.advisor.service import Advisor
from services.advisor.settings import AdvisorSettings
from services.advisor.training import train
from services.agent.service import Agent
from services.agent.settings import AgentSettings
from services.allocator.service import Allocator
from services.allocator.settings import AllocatorSettings
from services.cli.advise.query import ask
from services.cli.apps.allocators import allocator_explain, allocator_state
from services.cli.nats.tap import PUBLISHED
from services.cli.network.command import query_node
from services.collector.profiler.options import parse
from services.collector.profiler.recording import LocalRun
from services.collector.service import Collector
from services.collector.settings import CollectorSettings
from services.collector.write_ahead_log import Journal
from services.kubeoperator.service import Kubeoperator
from services.kubeoperator.settings import KubeoperatorSettings
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.fake_backend import FakeBackend
from tests.support.fake_network import UPLINKS, mac
from tests.support.fake_workers import FakeWorkers
from tests.support.job_records import job_record, run_profile
from tests.support.kubernetes_api import KubernetesApi
from tests.support.limit_orders import update
from tests.support.reconciler_lab import ReconcilerLab
from tests.support.recording_bus import Recorded, RecordingBus, Use
from tests.support.service_in_process import run_in_process
from tests.support.training_jobs import features, records

MIB = 1 << 20


def listed(role: Role) -> dict[Use, set[str]]:
    """What the registry and the permissions say that a service does."""
    name = role.value
    sent = [channel for channel in CHANNELS if name in channel.senders]
    received = [channel for channel in CHANNELS if name in channel.receivers]
    facts = {channel.template.text for channel in received if channel.delivery is Delivery.JETSTREAM}
    replayed = {stream.name for stream in _REPLAYS.get(role, ())}
    in_replays = {template.text for stream in STREAMS if stream.name in replayed for template in stream.templates}
    assert in_replays <= facts
    served = {endpoint.template.text for endpoint in ENDPOINTS if endpoint.service == name}
    uses = {
        Use.PUBLISH: {channel.template.text for channel in sent if channel.delivery is Delivery.CORE},
        Use.PUBLISH_FACT: {channel.template.text for channel in sent if channel.delivery is Delivery.JETSTREAM},
        Use.REQUEST: {channel.template.text for channel in sent if channel.delivery is Delivery.REQUEST}
        | {endpoint.template.text for endpoint in _ASKS.get(role, ())},
        Use.SERVE: served | {channel.template.text for channel in received if channel.delivery is Delivery.REQUEST},
        Use.SUBSCRIBE: (facts - in_replays)
        | {channel.template.text for channel in received if channel.delivery is Delivery.CORE},
        Use.REPLAY: replayed,
        Use.LOOK_UP: {stream.name for stream in _LOOKS_UP.get(role, ())},
        Use.WATCH: {bucket.name for bucket, use in _BUCKET_USES.items() if role in use.watchers},
        Use.WRITE: {bucket.name for bucket, use in _BUCKET_USES.items() if role in (*use.writers, *use.own_key)},
        Use.STORE: {store.name for store, roles in _STORE_USES.items() if role in roles},
    }
    return {use: names for use, names in uses.items() if names}


def compare(role: Role, recorded: Recorded) -> None:
    """Fail with what is missing or superfluous. Whoever watches a bucket may read it, and need not."""
    done = {use: names for use, names in recorded.items() if names and use is not Use.READ}
    assert done == listed(role)
    readers = {bucket.name for bucket, use in _BUCKET_USES.items() if role in use.readers}
    assert readers <= recorded[Use.READ] <= readers | recorded[Use.WATCH]


async def test_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that starts, is sampled and needs memory; the allocator's side refuses it."""
    backend, broker = FakeBackend(), MemoryBroker()
    backend.select_pods = lambda _selectors: None  # as where pods are discovered
    monkeypatch.setattr("services.agent.service.build_backend", lambda _settings, _clock: backend)
    bus, ours = RecordingBus(broker), MemoryBus(broker)

    async def refuse(_delivery: Any) -> MemoryReply:
        return MemoryReply(app="shop", epoch=1, granted_bytes=0, reclaiming_bytes=0, denial="full")

    await ours.serve(MEMORY_REQUESTS.subject("tb", app="shop"), refuse)
    await ours.bucket(APPS).put("shop", AppSpec(name="shop", cpu_limit=2, memory_limit=4096 * MIB))
    async with run_in_process(Agent, AgentSettings.load({}, node="n1"), bus) as agent:
        container = backend.add("web", quota_us=20_000, limit_bytes=256 * MIB)
        container.run(0, memory_bytes=100 * MIB)
        await until(lambda: agent.node is not None and len(agent.node.containers.managed) == 1, what="the container")
        await until(lambda: Use.SERVE in bus.recorded, what="the registration")
        assert agent.node is not None
        order = update({container.key: (30_000, 0)}, seq=1, incarnation=agent.node.containers.incarnation.number)
        await ours.request(LIMIT_UPDATES.subject("tb", node="n1"), order, timeout_s=5)
        backend.touch(container, 200 * MIB)
        await until(lambda: Use.REQUEST in bus.recorded, what="the request")
        await until(lambda: len(bus.recorded[Use.PUBLISH_FACT]) == 2, what="both kinds of facts")
        await until(lambda: "pod_selectors" in bus.recorded[Use.READ], within_s=60, what="the selectors")
    compare(Role.AGENT, bus.recorded)


async def test_allocator(tmp_path: Path) -> None:
    """It gives limits to one of two containers that want all of the application's CPU, and refuses the other one."""
    scenario = [
        {
            "app": "shop",
            "scenario": {"containers": [{"name": name, "phases": [{"duration_s": 60, "cpu_cores": 0.2}]}]},
            "quota_us": 50_000,
            "limit_bytes": 256 * MIB,
        }
        for name in ("web", "db")
    ]
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(scenario))
    broker = MemoryBroker()
    bus, ours = RecordingBus(broker), MemoryBus(broker)
    spec = AppSpec(name="shop", cpu_limit=1, container_min_cpu=1, memory_limit=1024 * MIB)
    await ours.bucket(APPS).put("shop", spec)
    agent = AgentSettings.load({}, node="n1", host="simulated", scenario_file=path)
    allocator = AllocatorSettings.load({}, warm_up_s=0.1)
    async with run_in_process(Agent, agent, MemoryBus(broker)), run_in_process(Allocator, allocator, bus):
        await until(lambda: Use.PUBLISH_FACT in bus.recorded, within_s=30, what="the refusal")
        await until(lambda: {Use.REQUEST, Use.PUBLISH} <= set(bus.recorded), within_s=30, what="limit updates")
    compare(Role.ALLOCATOR, bus.recorded)


async def test_reconciler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that is written, a route that changes, and other hosts' route events."""
    broker = MemoryBroker()
    bus = RecordingBus(broker)
    lab = ReconcilerLab(tmp_path, MemoryBus(broker), bus, path_audit="on")
    lab.put_in_place(monkeypatch)
    async with lab.reconciler() as reconciler:
        await until(lambda: reconciler.loop.last, what="the first pass")
        lab.network.learn(mac(1), "10.255.0.2")
        await until(lambda: lab.rules, what="the rule")
        lab.network.route("10.255.0.2", UPLINKS[0])
        await until(lambda: len(bus.recorded[Use.PUBLISH_FACT]) == 2, what="both kinds of facts")
        await until(lambda: {Use.SUBSCRIBE, Use.SERVE} <= set(bus.recorded), what="its subjects")
    compare(Role.RECONCILER, bus.recorded)


async def test_collector(tmp_path: Path) -> None:
    """The service with a record and a local run's profile in its journal, and a run that samples."""
    bus = RecordingBus(MemoryBroker())
    with Journal(tmp_path) as journal:
        journal.append(job_record(1))
        journal.append(run_profile(1))
    async with run_in_process(Collector, CollectorSettings.load({}, directory=tmp_path), bus):
        await until(lambda: len(bus.recorded[Use.PUBLISH_FACT]) == 2, what="both records")
    options = ["--interval", "0.05", "--grace", "0.2", "--run", "r", "--out", str(tmp_path)]
    workers = FakeWorkers(ends=[(3, 0), (3, 0)])
    await LocalRun(parse([*options, "--", "train"]), workers, bus).live()  # type: ignore[arg-type]
    compare(Role.COLLECTOR, bus.recorded)


class _Trainer:
    """Trains here and now."""

    def __init__(self, _limit_s: float) -> None:
        self._trained = 0

    async def train(self, training_set: TrainingSet) -> bytes:
        self._trained += 1
        return train(training_set, self._trained)


async def test_advisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It learns from what it replays, stores the model and tells a prediction that was asked for by name."""
    monkeypatch.setattr("services.advisor.service.TrainingProcess", _Trainer)
    broker = MemoryBroker()
    bus, ours = RecordingBus(broker), MemoryBus(broker)
    for record in records(("a", "b", "c")):
        ours.publish_event(JOB_RECORDS.subject("tb", job=record.job), record, message_id=record.job)
    await ours.flush(5)
    settings = AdvisorSettings.load(
        {}, algorithm="linear", retrain_debounce_s=0.0, refresh_interval_s=0.1, prices_directory=str(tmp_path)
    )
    async with run_in_process(Advisor, settings, bus) as advisor:
        await until(lambda: advisor.retrain_loop is not None and advisor.retrain_loop.model is not None, within_s=30)
        request = PredictRequest(task=features("z"), job="my.job")
        await ours.request(ADVISOR_PREDICT.template.subject("tb"), request, timeout_s=5)
        await until(lambda: Use.PUBLISH_FACT in bus.recorded, what="the prediction")
    compare(Role.ADVISOR, bus.recorded)


async def _state(_delivery: Any) -> StateReply:
    """Of a replica that is not the owner."""
    spec = AppSpec(name="shop", cpu_limit=1, memory_limit=64 * MIB)
    free = {
        "cpu_committed_us": 0,
        "cpu_free_us": 100_000,
        "memory_committed_bytes": 0,
        "memory_free_bytes": 64 * MIB,
    }
    app = AppState(spec=spec, owner="other", containers=(), **free)
    return StateReply(epoch=1, steps=1, superseded=False, replica="asked", apps=(app,))


async def test_kubeoperator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace that declares an application, whose owner is not the replica that is asked first."""
    api, broker = KubernetesApi(), MemoryBroker()
    await api.start()
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
    annotations = {"turnbuckle.cpu-limit": "8", "turnbuckle.memory-limit": "16Gi"}
    shop = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "annotations": annotations}}
    await api.apply("namespaces", shop)
    bus, ours = RecordingBus(broker), MemoryBus(broker)
    await ours.serve_queries("allocator", "0", "", {ALLOCATOR_STATE: _state})
    async with run_in_process(Kubeoperator, KubeoperatorSettings.load({}, status_interval_s=0.2), bus):
        await until(lambda: len(bus.recorded[Use.WRITE]) == 2, what="the AppSpec and the selectors")
        await until(lambda: len(bus.recorded[Use.REQUEST]) == 2, what="the owner's state")
    await api.stop()
    compare(Role.KUBEOPERATOR, bus.recorded)


async def test_cli() -> None:
    """Every question of its commands; `turnbuckle tap` reads whatever is published."""
    broker = MemoryBroker()
    bus, ours = RecordingBus(broker), MemoryBus(broker)

    async def explain(_delivery: Any) -> ExplainReply:
        return ExplainReply(app="shop", summary="", decisions=(), owner="other")

    await ours.serve_queries("allocator", "0", "", {ALLOCATOR_STATE: _state, ALLOCATOR_EXPLAIN: explain})
    questions: list[Callable[[Bus], Any]] = [
        allocator_state,
        lambda bus: allocator_explain(bus, ExplainRequest(app="shop")),
        lambda bus: query_node(bus, RECONCILER_STATE, "n1", NetworkStateRequest(), NetworkStateReply),
        lambda bus: query_node(bus, RECONCILER_DIFF, "n1", DiffRequest(), DiffReply),
        lambda bus: query_node(bus, RECONCILER_RULES, "n1", RulesRequest(), RulesReply),
        lambda bus: ask(bus, RankRequest(task=features("z"), workers=(1,)), training_timeout_s=0.0),
    ]
    await asyncio.gather(*(question(bus) for question in questions), return_exceptions=True)
    queries = {endpoint.template.text for endpoint in (ALLOCATOR_STATE, ALLOCATOR_EXPLAIN, ADVISOR_RANK)}
    assert bus.recorded[Use.REQUEST] - queries == {
        channel.template.text for channel in CHANNELS if "cli" in channel.senders
    }
    assert queries <= bus.recorded[Use.REQUEST]
    tapped = [wildcard("tb", pattern) for pattern in PUBLISHED]
    patterns = {channel.template.text: channel.template.pattern("tb") for channel in CHANNELS}
    heard = {text for text, pattern in patterns.items() if any(each.matches(pattern) for each in tapped)}
    observed = {channel.template.text for channel in CHANNELS if channel.delivery is not Delivery.REQUEST}
    assert heard == observed == {channel.template.text for channel in CHANNELS if "cli" in channel.receivers}
