"""The subject table against what each service does on a recording bus: an entry too few fails, and one too many.

The fast path sends only from its own processes: tests/kernel has it, and the server grants it one subject.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from schemas.apps import AppSpec
from schemas.network import DiffReply, DiffRequest, NetworkStateReply, NetworkStateRequest, RulesReply, RulesRequest
from schemas.oom import MemoryReply
from schemas.plans import PlanRequest
from schemas.predictions import PredictRequest, RankRequest
from schemas.queries import AppState, ExplainReply, ExplainRequest, StateReply
from schemas.registry import CHANNELS, ENDPOINTS
from schemas.roles import Role
from schemas.scheduling import (
    IterationSample,
    IterationSource,
    JobSpan,
    JobSpec,
    SubmitRequest,
    WorkerChange,
    WorkerLogRequest,
)
from schemas.service import Delivery
from schemas.services import SERVICES
from schemas.services.advisor import ADVISOR_PREDICT, ADVISOR_RANK
from schemas.services.allocator import ALLOCATOR_EXPLAIN, ALLOCATOR_STATE
from schemas.services.planner import PLANNER_PLAN
from schemas.services.scheduler import SCHEDULER_SUBMIT
from schemas.streams import APPS, STREAMS
from schemas.subjects import (
    JOB_RECORDS,
    LAYER_PROFILES,
    LIMIT_UPDATES,
    MEMORY_REQUESTS,
    RECONCILER_DIFF,
    RECONCILER_RULES,
    RECONCILER_STATE,
    WORK_ORDERS,
    wildcard,
)
from services._runtime.bus.api import Bus
from services.advisor.ports import TrainingSet
from services.advisor.service import Advisor
from services.advisor.settings import AdvisorSettings
from services.advisor.training import train
from services.agent.service import Agent
from services.agent.settings import AgentSettings
from services.aggregator.settings import AggregatorSettings
from services.allocator.service import Allocator
from services.allocator.settings import AllocatorSettings
from services.cli.advise.query import ask
from services.cli.apps.allocators import allocator_explain, allocator_state
from services.cli.nats.tap import PUBLISHED
from services.cli.network.command import query_node
from services.collector.layers.publishing import publish_on
from services.collector.profiler.options import parse
from services.collector.profiler.recording import LocalRun
from services.collector.service import Collector
from services.collector.settings import CollectorSettings
from services.collector.write_ahead_log import Journal
from services.kubeoperator.service import Kubeoperator
from services.kubeoperator.settings import KubeoperatorSettings
from services.memory.settings import MemorySettings
from services.memory.swap_devices import SwapDevices
from services.planner.service import Planner
from services.planner.settings import PlannerSettings
from services.runner.service import Runner
from services.runner.slurm.service import SlurmRunner
from services.runner.slurm.settings import SlurmSettings
from services.scheduler.commands.log_reader import LogChoice, LogReader
from services.scheduler.service import Scheduler
from services.scheduler.settings import SchedulerSettings
from services.trainer.commands.publishing import BusPublisher
from services.trainer.commands.registration import registered
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.fake_backend import FakeBackend
from tests.support.fake_network import UPLINKS, mac
from tests.support.fake_runner import FakeRunner
from tests.support.fake_slurm import FakeSlurm
from tests.support.fake_workers import FakeWorkers
from tests.support.job_records import job_record, run_profile
from tests.support.kubernetes_api import KubernetesApi
from tests.support.layer_profiles import cluster
from tests.support.layer_profiles import profile as layer_profile
from tests.support.limit_orders import update
from tests.support.local_aggregators import LocalService, asked, end, place
from tests.support.memory_hosts import local_daemon, service_on
from tests.support.reconciler_lab import ReconcilerLab
from tests.support.recording_bus import Recorded, RecordingBus, Use
from tests.support.runner_lab import JOB, RunnerLab, job_spec, run_order
from tests.support.service_in_process import run_in_process
from tests.support.slurm_jobs import slurm_order
from tests.support.swap_host import DISK as SWAP_DISK
from tests.support.swap_host import SwapHost
from tests.support.trainer_plans import plan_of
from tests.support.training_jobs import features, records
from tests.support.training_reports import event, saying, steps

MIB = 1 << 20
DECLARED = {service.name: service for service in SERVICES}


def listed(role: Role) -> dict[Use, set[str]]:
    """What a service declares that it does."""
    name, declared = role.value, DECLARED[role.value]
    sent = [channel for channel in CHANNELS if name in channel.senders]
    received = [channel for channel in CHANNELS if name in channel.receivers]
    facts = {channel.template.text for channel in received if channel.delivery is Delivery.JETSTREAM}
    replayed = {stream.name for stream in declared.replays}
    in_replays = {template.text for stream in STREAMS if stream.name in replayed for template in stream.templates}
    assert in_replays <= facts
    served = {endpoint.template.text for endpoint in ENDPOINTS if endpoint.service == name}
    uses = {
        Use.PUBLISH: {channel.template.text for channel in sent if channel.delivery is Delivery.CORE},
        Use.PUBLISH_FACT: {channel.template.text for channel in sent if channel.delivery is Delivery.JETSTREAM},
        Use.REQUEST: {channel.template.text for channel in sent if channel.delivery is Delivery.REQUEST}
        | {endpoint.template.text for endpoint in declared.asks},
        Use.SERVE: served | {channel.template.text for channel in received if channel.delivery is Delivery.REQUEST},
        Use.SUBSCRIBE: (facts - in_replays)
        | {channel.template.text for channel in received if channel.delivery is Delivery.CORE},
        Use.REPLAY: replayed,
        Use.LOOK_UP: {stream.name for stream in declared.looks_up},
        Use.WATCH: {use.bucket.name for use in declared.buckets if use.watches},
        Use.WRITE: {use.bucket.name for use in declared.buckets if use.writes or use.own_key or use.key},
        Use.STORE: {store.name for store in declared.object_stores},
    }
    return {use: names for use, names in uses.items() if names}


def compare(role: Role, recorded: Recorded) -> None:
    """Fail with what is missing or superfluous. Whoever watches a bucket may read it, and need not."""
    done = {use: names for use, names in recorded.items() if names and use is not Use.READ}
    assert done == listed(role)
    readers = {use.bucket.name for use in DECLARED[role.value].buckets if use.reads}
    assert readers <= recorded[Use.READ] <= readers | recorded[Use.WATCH]


async def test_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that starts, is sampled and needs memory; the allocator's side refuses it."""
    backend, broker = FakeBackend(), MemoryBroker()
    backend.select_pods = lambda _selectors: None  # as where pods are discovered
    monkeypatch.setattr("services.agent.service.build_backend", lambda _settings, _clock: backend)
    bus, ours = RecordingBus(broker), MemoryBus(broker)

    async def refuse(_delivery: Any) -> MemoryReply:
        return MemoryReply(app="shop", epoch=1, granted_bytes=0, reclaiming_bytes=0, denial="full")

    await ours.serve(MEMORY_REQUESTS.subject("tb", app="shop", node="n1"), refuse)
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
        facts = bus.recorded[Use.PUBLISH_FACT]
        await until(lambda: len(facts) == 2, within_s=30, what="the refusal, and what limits saved")
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
        await until(lambda: Use.REPLAY in bus.recorded, what="the scheduler's stream")
    options = ["--interval", "0.05", "--grace", "0.2", "--run", "r", "--out", str(tmp_path)]
    workers = FakeWorkers(ends=[(3, 0), (3, 0)])
    await LocalRun(parse([*options, "--", "train"]), workers, bus).live()  # type: ignore[arg-type]
    await publish_on(bus, layer_profile())
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


async def test_planner() -> None:
    """A profile that is known, and a plan that is made of it and told."""
    broker = MemoryBroker()
    bus, ours = RecordingBus(broker), MemoryBus(broker)
    known = layer_profile()
    ours.publish_event(LAYER_PROFILES.subject("tb", profile=known.profile), known, message_id="1")
    asked = PlanRequest(job="train", task=known.task, cluster=cluster(("fast", "a", 8)), batch=4)
    async with run_in_process(Planner, PlannerSettings.load({}, timeout_s=60), bus):
        reply = await ours.request(PLANNER_PLAN.template.subject("tb"), asked, timeout_s=120)
        assert getattr(reply, "plan", None) is not None, reply
    compare(Role.PLANNER, bus.recorded)


async def test_aggregator() -> None:
    """A job that is placed and ends, by the instance that leads."""
    broker = MemoryBroker()
    bus, ours = RecordingBus(broker), MemoryBus(broker)
    async with run_in_process(LocalService, AggregatorSettings.load({}, processes=1), bus) as service:
        await until(lambda: service.serving, what="the lead")
        await place(ours, asked())
        await end(ours)
        await until(lambda: Use.PUBLISH_FACT in bus.recorded, what="the events")
    compare(Role.AGGREGATOR, bus.recorded)


async def test_memory(tmp_path: Path) -> None:
    """Two hosts: a slab of one swaps, goes to the other, and is said to have."""
    kernel, broker = SwapHost(13 * MIB), MemoryBroker()
    kernel.export_bytes = 4 * MIB
    devices = SwapDevices(tmp_path / "small", lambda: kernel.as_host)
    with devices.locked("swap") as device:
        device.attach(SWAP_DISK, 4 * MIB)
    kernel.synchronized.add("swap-0")
    bus, lender = RecordingBus(broker), MemoryBus(broker)
    small, big = (
        MemorySettings.load({}, node=node, state_directory=tmp_path / node, trusted_hosts=("*",))
        for node in ("small", "big")
    )

    def swaps() -> bool:
        kernel.pages["swap-0"] = kernel.pages.get("swap-0", 0) + 1_000
        return {Use.PUBLISH_FACT, Use.REQUEST, Use.READ} <= set(bus.recorded)

    async with (
        local_daemon() as daemon,
        run_in_process(service_on(SwapHost(0), daemon), big, lender),
        run_in_process(service_on(kernel), small, bus) as service,
    ):
        await until(lambda: service.not_ready() is None, what="the registration")
        await until(swaps, what="the slab mapped")
    compare(Role.MEMORY, bus.recorded)


async def test_runner(tmp_path: Path) -> None:
    """A worker that is started and ends, what it wrote, and what it said of its training."""
    lab = RunnerLab(tmp_path)
    bus = RecordingBus(lab.broker)
    await lab.listen()
    async with run_in_process(Runner, lab.settings, bus) as runner:
        await until(lambda: runner.not_ready() is None, what="the registration")
        command = ("sh", "-c", 'echo done; exec "$@"', "sh", *saying(steps(), event()))
        await lab.ask(run_order(job_spec(lab.work, command)))
        await lab.until_change(WorkerChange.ENDED)
        assert (await lab.log(WorkerLogRequest(job=JOB))).text == "done\n"
        # A real one needs two namespaces: tests/kernel/test_pacing.py.
        runner._publish_iteration(
            IterationSample(
                job=JOB,
                attempt=1,
                rank=0,
                node=lab.settings.node,
                time_ns=1,
                period_us=2,
                sending_us=1,
                sent_bytes=1,
                source=IterationSource.SOCKETS,
            )
        )
    compare(Role.RUNNER, bus.recorded)


async def test_trainer(tmp_path: Path) -> None:
    """A training by hand, with a bus; an elastic one registers its name."""
    broker = MemoryBroker()
    bus = RecordingBus(broker)
    publisher = BusPublisher(cast("Any", bus))
    for message in (steps(), event()):
        publisher.publish(message)
    async with registered(publisher, plan_of([12], [1], [1]), print, tmp_path):
        pass
    service_bus = MemoryBus(broker)
    async with run_in_process(LocalService, AggregatorSettings.load({}, processes=1), service_bus) as service:
        await until(lambda: service.serving, what="the lead")
        await place(cast("Any", bus), asked())
        await end(cast("Any", bus))
    compare(Role.TRAINER, bus.recorded)


async def test_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An order to run, whose workers end, and a look at a log; a Slurm in memory."""
    slurm, broker = FakeSlurm(tmp_path), MemoryBroker()

    async def run(command: tuple[str, ...], _timeout_s: float, *_more: object) -> str:
        return await slurm(command)

    monkeypatch.setattr("services.runner.slurm.service.run", run)
    bus, ours = RecordingBus(broker), MemoryBus(broker)
    settings = SlurmSettings.load(
        {}, directory=tmp_path, allow_root=True, poll_interval_s=0.05, holder_directory=tmp_path / "holders"
    )
    async with run_in_process(SlurmRunner, settings, bus):
        await until(lambda: Use.SERVE in bus.recorded and Use.WRITE in bus.recorded, what="the registrations")
        await until(lambda: len(bus.recorded[Use.SERVE]) == 2, what="both kinds of requests")
        reply = await ours.request(WORK_ORDERS.subject("tb", node="n1"), slurm_order(), timeout_s=20)
        assert getattr(reply, "obeyed", False), reply
        slurm.start_waiting()
        await until(lambda: Use.PUBLISH_FACT in bus.recorded, what="the start")
    compare(Role.SLURM, bus.recorded)


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


async def test_scheduler() -> None:
    """A job from its submission to its end on a node of one slot, and another one that waits for it."""
    broker = MemoryBroker()
    bus, ours = RecordingBus(broker), MemoryBus(broker)
    runner = FakeRunner(MemoryBus(broker), "n1", slots=1)
    runner.info = runner.info.model_copy(update={"device_kind": "fast", "device_memory_bytes": 8 << 30})
    await runner.start()
    async with run_in_process(Scheduler, SchedulerSettings.load({}), bus) as scheduler:
        await until(
            lambda: scheduler.inbox.closed is None and scheduler.lead.state.nodes, what="the lead, and the node"
        )
        for job in ("first", "second"):
            spec = JobSpec(job=job, command=("train",), directory="/srv", model="tiny", batch=4)
            await ours.request(SCHEDULER_SUBMIT.template.subject("tb"), SubmitRequest(spec=spec), timeout_s=5)
        await until(runner.running, what="the worker")
        runner.tell("first", WorkerChange.ENDED)
        await until(lambda: "first" in scheduler.lead.state.finished, what="its end")
        await until(lambda: {Use.READ, Use.WRITE} <= set(bus.recorded), what="specs and applications")
        await until(lambda: {"apps", "job_specs"} <= bus.recorded[Use.READ] & bus.recorded[Use.WRITE], what="both")
    await runner.stop()
    compare(Role.SCHEDULER, bus.recorded)


async def _read_log(bus: Bus) -> None:
    reader = LogReader(bus, LogChoice("train", None, None, lines=1, follow=False, as_json=False))
    reader.open(JobSpan(attempt=1, begin_ns=0, nodes=("n1",)), is_first=True)
    (worker,) = reader.workers.values()
    await reader.read(worker)


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
        _read_log,
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
