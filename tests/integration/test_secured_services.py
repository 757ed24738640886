"""Each service with its own key and no more, over TLS: it does its main thing, and is never refused anything."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schemas.limits import LimitDecisions, LimitsApplied
from schemas.message import Message
from schemas.network import NetworkStateReply, NetworkStateRequest
from schemas.predictions import RankReply, RankRequest
from schemas.roles import Role
from schemas.scheduling import RunnerInfo, WorkerChange, WorkerLogReply, WorkerLogRequest, WorkEvent, WorkReply
from schemas.services.advisor import ADVISOR_RANK
from schemas.streams import JOB_STREAM, MODELS, RUNNERS, TC_STREAM, WORK_STREAM
from schemas.subjects import JOB_RECORDS, RECONCILER_STATE, TC_EVENTS, WORK_ORDERS, WORKER_LOGS, wildcard
from services._runtime.bus.api import BusError, Delivery
from services._runtime.bus.nats_history import read_stored
from services.cli.main import app
from services.collector.publishing import Publisher
from services.collector.write_ahead_log import Journal
from tests.support.authority import make_ca
from tests.support.cluster_lab import MessageLog, ServiceProcess, poll
from tests.support.deadline import until
from tests.support.fake_network import mac
from tests.support.reconciler_lab import ReconcilerLab
from tests.support.runner_lab import RUN_AS, job_spec, run_order
from tests.support.secured_nats import SecuredNats
from tests.support.training_jobs import features, profile, records

NODE = "n1"
MOST_APPLICATIONS = 30
SPEC = "name: shop\ncpu_limit: 2\nmemory_limit: 2GiB\n"
LOAD = [
    {
        "app": "shop",
        "scenario": {
            "containers": [
                {
                    "name": name,
                    "threads": 2,
                    "phases": [
                        {"duration_s": 0.4, "cpu_cores": low, "memory_bytes": 100 << 20},
                        {"duration_s": 0.4, "cpu_cores": high, "memory_bytes": 200 << 20},
                    ],
                }
                for name, low, high in (("web", 0.1, 1.2), ("api", 0.8, 0.2))
            ]
        },
        "quota_us": 50_000,
        "limit_bytes": 256 << 20,
    }
]
_VIOLATION = re.compile(r' - "\w+/nkey:(\w+)" - \w+ Violation - .*?"([^"]+)"')


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SecuredNats]:
    certificates = make_ca(tmp_path / "tls", "127.0.0.1")
    async with SecuredNats(tmp_path / "secrets", nodes=(NODE,), tls=certificates) as made:
        await made.declare()
        yield made


def refusals(server: SecuredNats) -> list[tuple[str, str]]:
    """Who was refused what, observers aside: their commands try to read in batches, and get on without."""
    lines = [line for line in server.log_path.read_text().splitlines() if "iolation" in line]
    found = [(match[1], match[2]) for line in lines if (match := _VIOLATION.search(line))]
    assert len(found) == len(lines), "\n".join(lines)
    told = []
    for key, subject in found:
        user = next(each.identity for each in server.users if each.public_key == key)
        if user.role is not Role.OBSERVER or "DIRECT.GET" not in subject:
            told.append((user.name, subject))
    return told


def launch(
    server: SecuredNats, directory: Path, role: Role, node: str | None = None, **settings: str
) -> ServiceProcess:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "TURNBUCKLE_"))}
    ours = {f"TURNBUCKLE_{name}": value for name, value in {"HEALTH_PORT": "0", **settings}.items()}
    log = directory / f"{role.value}.log"
    return ServiceProcess(role.value, kept | server.environment(role, node) | ours, log)


async def turnbuckle(server: SecuredNats, role: Role, *arguments: str) -> str:
    """The command, as a person with this key."""
    environment = {**server.environment(role), "NATS_CONTEXT": ""}
    done = await asyncio.to_thread(CliRunner().invoke, app, list(arguments), env=environment)
    assert done.exit_code == 0, done.output
    return done.stdout


def decided(applied: LimitsApplied, messages: list[Message]) -> bool:
    """Whether a decision of the same application and epoch names this limit update, and has its containers."""
    return any(
        (each.app, each.epoch) == (applied.app, applied.epoch)
        and each.update_seq_first <= applied.seq <= each.update_seq_last
        and set(applied.keys) <= set(each.keys)
        for each in messages
        if isinstance(each, LimitDecisions)
    )


async def test_limits_move(server: SecuredNats, tmp_path: Path) -> None:
    """Agent, allocator, operator, observer: announced, decided, ordered, applied, watched, withdrawn."""
    (tmp_path / "app.yaml").write_text(SPEC)
    (tmp_path / "load.json").write_text(json.dumps(LOAD))
    agent_settings = {
        "AGENT__NODE": NODE,
        "AGENT__HOST": "simulated",
        "AGENT__SCENARIO_FILE": str(tmp_path / "load.json"),
        "AGENT__STATE_DIRECTORY": str(tmp_path / "state"),
    }
    services = [
        launch(server, tmp_path, Role.AGENT, NODE, **agent_settings),
        launch(server, tmp_path, Role.ALLOCATOR),
    ]
    agent, allocator = services
    try:
        await allocator.ready()
        await agent.ready()
        observer, log = await server.bus(Role.OBSERVER), MessageLog()
        await observer.subscribe(wildcard("tb", "obs.>"), log.take)
        await turnbuckle(server, Role.OPERATOR, "apply", str(tmp_path / "app.yaml"), "--limits-only")

        async def applied() -> bool:
            return await agent.metric("turnbuckle_agent_quota_writes_total") >= 5

        await poll(applied, what="quotas that are written")
        await until(lambda: len([each for each in log.messages if isinstance(each, LimitsApplied)]) >= 3, what="told")
        told = [each for each in log.messages if isinstance(each, LimitsApplied)]
        # The allocator sends a limit first, and publishes what it decided afterwards: an agent may have told by then.
        await until(lambda: all(decided(each, log.messages) for each in told), what="decisions on what was applied")
        apps = json.loads(await turnbuckle(server, Role.OBSERVER, "apps", "--json"))
        explained = await turnbuckle(server, Role.OBSERVER, "explain", "shop", "--json")
        await turnbuckle(server, Role.OPERATOR, "delete", "shop", "--yes")

        assert apps["allocator"] is True
        assert [row["app"] for row in apps["apps"]] == ["shop"]
        assert json.loads(explained)
        assert await allocator.metric("turnbuckle_allocator_unacknowledged_limit_updates_total") == 0
        assert [line for line in agent.log() if line["event"].startswith("limit_update_rejected")] == []
        await observer.close(2)
    finally:
        for service in services:
            service.kill()

    assert refusals(server) == []
    for service in services:
        assert "SU" + "A" not in service.log_path.read_text()  # how a user's seed begins


async def test_either_replica_leads_to_the_owner(server: SecuredNats, tmp_path: Path) -> None:
    """Two allocators share the applications; an observer is told of all of them, whichever replica answers him."""
    names: list[str] = []
    replicas = []
    for number in range(2):
        (tmp_path / f"{number}").mkdir()
        replicas.append(launch(server, tmp_path / f"{number}", Role.ALLOCATOR))
    try:
        for replica in replicas:
            await replica.ready(60)

        async def owners() -> set[str]:
            rows = json.loads(await turnbuckle(server, Role.OBSERVER, "apps", "--json"))["apps"]
            assert [row["app"] for row in rows] == names
            owned = {row["owner"] for row in rows}
            return owned if owned.isdisjoint({"", None}) else set()

        shared = False
        while not shared:  # who owns a name is a hash of replica ids, which are random: six of one are 1 in 32
            assert len(names) < MOST_APPLICATIONS, "one of two replicas owns every application"
            for _ in range(6):
                names.append(f"shop{len(names):02}")
                (tmp_path / "app.yaml").write_text(SPEC.replace("shop", names[-1]))
                await turnbuckle(server, Role.OPERATOR, "apply", str(tmp_path / "app.yaml"), "--limits-only")
            shared = len(await poll(owners, within_s=60, what="an owner for each")) == 2
        for name in names:
            explained = json.loads(await turnbuckle(server, Role.OBSERVER, "explain", name, "--json"))
            assert "0 containers hold" in json.dumps(explained), explained
    finally:
        for replica in replicas:
            replica.kill()
    assert refusals(server) == []


async def test_rules_are_told(server: SecuredNats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reconciler: asks whether it is alone, answers questions, tells its writes, all for its own node."""
    operator = await server.bus(Role.OPERATOR)
    reconciler, observer = await server.bus(Role.RECONCILER, NODE), await server.bus(Role.OBSERVER)
    lab = ReconcilerLab(tmp_path, operator, reconciler)
    lab.put_in_place(monkeypatch)
    async with lab.reconciler():
        lab.network.learn(mac(0), "10.255.0.3")
        await until(lambda: lab.rules == {mac(0): "10.255.0.3"}, what="the rule")
        state = await observer.request(RECONCILER_STATE.subject("tb", node=NODE), NetworkStateRequest(), timeout_s=60)
        assert isinstance(state, NetworkStateReply)
        await lab.bus.flush(60)
    told: list[object] = []
    await read_stored(observer, TC_STREAM, TC_EVENTS.pattern("tb"), 0.0, lambda it: told.append(it.message))

    assert told
    assert refusals(server) == []
    for bus in (operator, reconciler, observer):
        await bus.close(2)


@pytest.mark.timeout(300)
async def test_jobs_become_predictions(server: SecuredNats, tmp_path: Path) -> None:
    """The collector's records, once each; the advisor's model, answers and prediction."""
    collector, operator = await server.bus(Role.COLLECTOR), await server.bus(Role.OPERATOR)
    administrator = await server.bus(Role.ADMINISTRATOR)
    told = [*(profile(f"task{number}") for number in range(4)), *records([f"task{number}" for number in range(4)])]
    with Journal(tmp_path / "journal") as journal:
        for record in told:
            journal.append(record)
        assert await Publisher(journal, collector).publish() == len(told)
    stored: list[object] = []
    await read_stored(collector, JOB_STREAM, JOB_RECORDS.pattern("tb"), 0.0, lambda it: stored.append(it.message))
    assert len(stored) == 96
    settings = {
        "ADVISOR__ALGORITHM": "linear",
        "ADVISOR__REFRESH_INTERVAL_S": "0.2",
        "ADVISOR__RETRAIN_DEBOUNCE_S": "0.2",
        "ADVISOR__PRICES_DIRECTORY": str(tmp_path / "prices"),
    }
    advisor = launch(server, tmp_path, Role.ADVISOR, **settings)
    question = RankRequest(task=features("task9"), profile=profile("task9"), workers=(1, 2), batch_sizes=(16,), job="j")

    async def answered() -> object:
        try:
            return await operator.request(ADVISOR_RANK.template.subject("tb"), question, timeout_s=60)
        except BusError:
            return None

    try:
        assert isinstance(await poll(answered, within_s=200, what="an answer"), RankReply)
        assert len(await administrator.objects(MODELS).names()) == 1

        async def predicted() -> bool:
            return (await operator.jetstream.stream_info("TB_PREDICTION")).state.messages == 1

        await poll(predicted, what="the prediction as a fact")
    finally:
        advisor.kill()

    assert refusals(server) == []
    for bus in (collector, operator, administrator):
        await bus.close(2)


async def test_a_node_runs_what_the_scheduler_orders(server: SecuredNats, tmp_path: Path) -> None:
    """The runner's registration, an order with its answer, events, a log asked for by an operator."""
    scheduler, operator = await server.bus(Role.SCHEDULER), await server.bus(Role.OPERATOR)
    changes: list[WorkerChange] = []

    async def take(delivery: Delivery) -> None:
        assert isinstance(delivery.message, WorkEvent)
        changes.append(delivery.message.change)

    await scheduler.replay(WORK_STREAM, take)
    settings = {
        "RUNNER__NODE": NODE,
        "RUNNER__STATE_DIRECTORY": str(tmp_path / "state"),
        "RUNNER__CONTROL_GROUPS": "off",
        **({"RUNNER__RUN_AS": RUN_AS} if RUN_AS is not None else {}),
    }
    runner = await launch(server, tmp_path, Role.RUNNER, NODE, **settings).ready()
    try:
        entry = await scheduler.bucket(RUNNERS).get(NODE)
        assert entry is not None
        assert isinstance(entry.message, RunnerInfo)
        asked = run_order(job_spec(tmp_path, ("echo", "done"), preemption="never"))
        reply = await scheduler.request(WORK_ORDERS.subject("tb", node=NODE), asked, timeout_s=60)
        assert isinstance(reply, WorkReply)
        assert reply.obeyed
        await until(lambda: WorkerChange.ENDED in changes, what="its end")
        log = await operator.request(
            WORKER_LOGS.subject("tb", node=NODE), WorkerLogRequest(job=asked.job), timeout_s=60
        )
        assert isinstance(log, WorkerLogReply)
        assert log.text == "done\n"
    finally:
        runner.kill()

    assert list(dict.fromkeys(changes)) == [WorkerChange.STARTED, WorkerChange.READY, WorkerChange.ENDED]
    assert refusals(server) == []
    for bus in (scheduler, operator):
        await bus.close(2)
