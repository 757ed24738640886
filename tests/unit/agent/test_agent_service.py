"""The whole agent on a bus in memory: alarms, requests, deadlines, events, with and without a bus."""

import pytest
from structlog.testing import capture_logs

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.containers import ContainerChange, NodeInfo
from schemas.limits import LimitUpdate, RowStatus
from schemas.oom import MemoryReply, OomCause, OomKind
from schemas.streams import APPS, CONTAINER_STREAM, NODES, OOM_STREAM
from schemas.subjects import CFS, LIMIT_UPDATES, MEMORY_REQUESTS
from services._host.cgroup_snapshot import QuotaWriter
from services._runtime.bus.api import NotPermittedError
from services._runtime.settings_error import UnusableSettingsError
from services.agent.memory.growth import MIB
from services.agent.ports import WatchdogReport
from services.agent.sampling.sampler import Sampler
from services.agent.service import Agent
from services.agent.settings import AgentSettings
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.bus.memory_kv import MemoryKeyValue
from tests.support.deadline import until
from tests.support.fake_backend import FakeBackend
from tests.support.limit_orders import reserve_order, update
from tests.support.service_in_process import run_in_process

pytestmark = pytest.mark.virtual_time


class Lab:
    """One agent, and an allocator's side of the bus."""

    def __init__(self, backend):
        self.backend = backend
        self.broker = MemoryBroker()
        self.bus = MemoryBus(self.broker)
        self.ours = MemoryBus(self.broker)
        self.settings = AgentSettings.load({}, node="n1", oom_wait_timeout_s=0.3)
        self.batches, self.lines, self.changes, self.seq = [], [], [], 0

    def agent(self):
        return run_in_process(Agent, self.settings, self.bus)

    async def listen(self):
        await self.ours.subscribe(CFS.pattern("tb"), lambda delivery: self.batches.append(delivery.message))

        async def take(delivery):
            self.lines.append(delivery.message)

        async def take_change(delivery):
            self.changes.append(delivery.message)

        await self.ours.bucket(APPS).put("shop", AppSpec(name="shop", cpu_limit=2, memory_limit=4096 * MIB))
        await self.ours.replay(OOM_STREAM, take)
        await self.ours.replay(CONTAINER_STREAM, take_change)

    @property
    def kinds(self):
        return [line.kind for line in self.lines]

    async def order(self, build, *arguments, **keywords):
        self.seq += 1
        message: LimitUpdate = build(*arguments, seq=self.seq, incarnation=self.batches[-1].incarnation, **keywords)
        return await self.ours.request(LIMIT_UPDATES.subject("tb", node="n1"), message, timeout_s=60)

    async def guarded(self, *, reserve_mib=0):
        """A guarded container of 256 MiB that uses 100."""
        container = self.backend.add("web", quota_us=20_000, limit_bytes=256 * MIB)
        container.run(0, memory_bytes=100 * MIB)
        await until(lambda: self.batches, what="the first batch")
        await self.order(update, {container.key: (30_000, 0)})
        await self.order(reserve_order, reserve_mib * MIB)
        return container


@pytest.fixture
async def lab(monkeypatch):
    backend = FakeBackend()
    monkeypatch.setattr("services.agent.service.build_backend", lambda _settings, _clock: backend)
    lab = Lab(backend)
    await lab.listen()
    yield lab
    await lab.bus.close(1)
    await lab.ours.close(1)


async def test_an_alarm_becomes_a_grant_and_an_event(lab):
    async with lab.agent():
        container = await lab.guarded(reserve_mib=100)
        lab.backend.touch(container, 140 * MIB)
        await until(lambda: lab.lines, what="the event")

    (line,) = lab.lines[:1]
    assert (line.kind, line.app, line.node, line.container) == (OomKind.GRANT, "shop", "n1", container.key)
    assert line.limit_before_bytes == 256 * MIB < line.limit_after_bytes
    assert 0 < line.latency_us < 100_000


async def test_a_raise_beyond_the_memory_that_its_settings_name_is_refused_told_and_registered(lab):
    environ = {
        "TURNBUCKLE_AGENT__NODE_MEMORY_BYTES": "512MiB",
        "TURNBUCKLE_AGENT__SYSTEM_RESERVED_MEMORY_BYTES": "128Mi",
    }
    lab.settings = AgentSettings.load(environ, node="n1")
    async with lab.agent():
        container = await lab.guarded()
        await lab.order(update, {container.key: (0, 300 * MIB)})
        reply = await lab.order(update, {container.key: (0, 1024 * MIB)})
        await until(lambda: lab.lines, what="the event")
        info = (await lab.ours.bucket(NODES).get("n1")).message

    assert reply.column("limit_bytes").tolist() == [384 * MIB]
    assert "add up to 300.0 MiB of 384.0 MiB that are allocatable" in reply.node_budget_reason
    assert (lab.lines[0].kind, lab.lines[0].cause) == (OomKind.GRANT_DENIED, OomCause.NODE)
    assert (info.memory_bytes, info.allocatable_memory_bytes) == (512 * MIB, 384 * MIB)


async def test_a_raise_beyond_the_ratio_of_cores_that_its_settings_name_is_refused_told_and_registered(lab):
    """Two cores, a ratio of 0.25: 50 ms per period, 30 are held."""
    lab.settings = AgentSettings.load({"TURNBUCKLE_AGENT__CPU_OVERCOMMIT": "0.25"}, node="n1")
    async with lab.agent():
        container = await lab.guarded()
        reply = await lab.order(update, {container.key: (90_000, 0)})
        await until(lambda: lab.changes[-1].change is ContainerChange.CPU_REFUSED, what="the event")
        info = (await lab.ours.bucket(NODES).get("n1")).message

    assert reply.column("quota_us").tolist() == [50_000]
    why = "the CPU budget of node n1 is used up: CPU limits of its containers add up to 0.30 of 0.50 cores (0.25 x 2)"
    assert reply.node_budget_reason == why
    told = next(each for each in lab.changes if each.change is ContainerChange.CPU_REFUSED)
    assert (told.container, told.quota_us) == (container.key, 50_000)
    assert told.reason == f"{why}; the limit update was 0.90 cores, its limit is 0.50 cores"
    assert (info.allocatable_cpu_us, info.warns_cpu_overcommit) == (50_000, False)


@pytest.mark.parametrize(("setting", "warns"), [("warn", True), ("allow", False)])
async def test_without_a_ratio_a_node_registers_whether_overcommit_is_worth_a_warning(lab, setting, warns):
    lab.settings = AgentSettings.load({"TURNBUCKLE_AGENT__CPU_OVERCOMMIT": setting}, node="n1")
    async with lab.agent():
        container = await lab.guarded()
        reply = await lab.order(update, {container.key: (190_000, 0)})
        info = (await lab.ours.bucket(NODES).get("n1")).message

    assert reply.column("status").tolist() == [RowStatus.APPLIED]
    assert (info.allocatable_cpu_us, info.warns_cpu_overcommit) == (None, warns)


async def test_while_memory_available_is_too_low_nobody_is_asked_for_more(lab):
    """Whatever an allocator gives could not be granted: refused at once, with the reason."""
    requests = []

    async def give(delivery):
        requests.append(delivery.message)
        return MemoryReply(app="shop", epoch=1, granted_bytes=1 << 30, reclaiming_bytes=0)

    await lab.ours.serve(MEMORY_REQUESTS.subject("tb", app="shop", node="n1"), give)
    async with lab.agent():
        container = await lab.guarded(reserve_mib=100)
        lab.backend.host.available_bytes = 60 * MIB
        lab.backend.touch(container, 140 * MIB)
        await until(lambda: OomKind.GRANT_DENIED in lab.kinds, what="the refusal")

    assert requests == []
    assert container.limit_bytes == 256 * MIB
    refusal = lab.lines[lab.kinds.index(OomKind.GRANT_DENIED)]
    assert refusal.reason == (
        "memory of node n1 runs out: MemAvailable is 60.0 MiB, and 100.0 MiB are kept free or promised already"
    )


async def test_a_request_is_refused_and_the_kernel_kills_as_is_standard(lab):
    requests = []

    async def refuse(delivery):
        requests.append(delivery.message)
        return MemoryReply(app="shop", epoch=1, granted_bytes=0, reclaiming_bytes=0, denial="shop may use 256 MiB")

    await lab.ours.serve(MEMORY_REQUESTS.subject("tb", app="shop", node="n1"), refuse)
    async with lab.agent():
        container = await lab.guarded()
        lab.backend.touch(container, 200 * MIB)
        await until(lambda: OomKind.KILL in lab.kinds, what="the kill")
        await until(lambda: lab.batches[-1].rows()[0]["oom_kills"] == 1, what="the kill in a batch")

    assert lab.kinds == [OomKind.OOM_WAIT, OomKind.GRANT_DENIED, OomKind.OOM_KILLER_ENABLED, OomKind.KILL]
    assert {line.reason for line in lab.lines[1:]} == {"shop may use 256 MiB"}
    assert (requests[0].container, requests[0].tasks_blocked) == (container.key, True)
    await until(lambda: lab.changes[-1].change is ContainerChange.RELEASED, what="the release of the container")
    assert lab.changes[-1].oom_kills == 1


async def test_a_container_for_which_no_file_is_left_is_refused_and_the_others_stay(lab):
    async with lab.agent():
        first = await lab.guarded()
        lab.backend.host.full = "the agent has no file descriptor left of 20000"
        lab.backend.add("late")
        await until(lambda: lab.changes[-1].change is ContainerChange.REJECTED, what="the refusal")
        refusal, count = lab.changes[-1], len(lab.batches)
        await until(lambda: len(lab.batches) > count, what="the next batch")
        last = lab.batches[-1]

    assert refusal.reason == "the agent has no file descriptor left of 20000"
    assert last.keys == [first.key]


async def test_a_request_is_answered_by_a_reserve(lab):
    async def grant(delivery):
        await lab.order(reserve_order, delivery.message.wanted_bytes)
        return MemoryReply(app="shop", epoch=1, granted_bytes=delivery.message.wanted_bytes, reclaiming_bytes=0)

    await lab.ours.serve(MEMORY_REQUESTS.subject("tb", app="shop", node="n1"), grant)
    async with lab.agent():
        container = await lab.guarded()
        lab.backend.touch(container, 200 * MIB)
        await until(lambda: OomKind.GRANT in lab.kinds, what="the grant")

        assert not container.paused
        assert container.oom_kills == 0
        assert lab.kinds[:2] == [OomKind.OOM_WAIT, OomKind.GRANT]  # what it touched at once looks like fast growth


async def test_without_a_bus_grants_go_on_and_waits_end_and_the_events_follow(lab):
    async with lab.agent():
        container = await lab.guarded(reserve_mib=100)
        lab.bus.disconnect()
        lab.backend.touch(container, 140 * MIB)
        await until(lambda: container.limit_bytes > 256 * MIB, what="a grant")
        lab.backend.touch(container, 500 * MIB)
        await until(lambda: container.oom_kills == 1, what="the kernel's kill at the deadline")
        assert lab.lines == []
        lab.bus.reconnect()
        await until(lambda: OomKind.KILL in lab.kinds, what="the events")

    release = next(line for line in lab.lines if line.kind is OomKind.OOM_KILLER_ENABLED)
    assert 300_000 <= release.blocked_us < 6_000_000
    assert "no reply from an allocator" in release.reason
    assert len({(line.kind, line.time_ns) for line in lab.lines}) == len(lab.lines)


async def test_an_agent_starts_without_a_bus_and_takes_orders_when_it_comes(lab):
    lab.bus.disconnect()
    async with lab.agent() as agent:
        await until(lambda: agent.node.sampler.samples_taken > 1, what="samples")
        lab.bus.reconnect()
        await until(lambda: lab.bus.open, what="the subscription")
        container = await lab.guarded()

        assert container.oom_controlled


async def doubted_and_refused(lab, bus):
    async with run_in_process(Agent, lab.settings, bus) as agent:
        await until(lambda: "registered by another agent" in (agent.not_ready() or ""), what="the doubt")
        await until(agent._runtime.crashed.done, within_s=60, what="the refusal, when the first has renewed")


async def test_a_second_agent_of_the_same_name_is_refused(lab, monkeypatch):
    """It says nothing on the bus meanwhile, and takes nothing away from the first."""
    async with lab.agent() as first:
        await lab.guarded()
        other = FakeBackend()
        monkeypatch.setattr("services.agent.service.build_backend", lambda _settings, _clock: other)
        other.add("web")
        second = MemoryBus(lab.broker)
        with pytest.raises(UnusableSettingsError, match="'n1' is at work already"):
            await doubted_and_refused(lab, second)
        await second.close(1)
        entry = await lab.ours.bucket(NODES).get("n1")

        assert {batch.incarnation for batch in lab.batches} == {first.node.containers.incarnation.number}
        assert entry.message.incarnation == first.node.containers.incarnation.number


async def test_after_a_kill_the_next_agent_of_the_host_takes_orders_at_once(lab):
    """Its registration is still there; that its process is dead is known by the lock."""
    left = NodeInfo(
        node="n1",
        incarnation=1,
        time_ns=1,
        host_cpus=1,
        memory_bytes=1,
        cgroup_version=2,
        telemetry_source="x",
        docker=False,
        container_count=0,
        version="0",
        holder=lab.backend.holder,
    )
    await lab.ours.bucket(NODES).put("n1", left)
    async with lab.agent() as agent:
        assert agent.not_ready() is None or "registered" not in agent.not_ready()
        entry = await lab.ours.bucket(NODES).get("n1")
        await lab.guarded()

    assert entry.message.incarnation == agent.node.containers.incarnation.number


async def test_where_the_server_does_not_let_it_register_it_says_what_to_do(lab, monkeypatch):
    """Users of an older configuration, say. Memory is guarded all the same."""

    async def refuse(_bucket, _key):
        raise NotPermittedError("this user may not publish to $JS.API.STREAM.MSG.GET.KV_tb_nodes")

    monkeypatch.setattr(MemoryKeyValue, "get", refuse)
    with capture_logs() as logs:
        async with lab.agent() as agent:
            await until(lambda: agent.node.sampler.samples_taken > 1, what="samples")
    [told] = [line for line in logs if line["event"] == "name_not_registered"]

    assert "KV_tb_nodes" in told["error"]
    assert "turnbuckle nats config" in told["remedy"]


async def test_signing_off_removes_the_registration(lab):
    async with lab.agent():
        await lab.guarded()
        assert await lab.ours.bucket(NODES).get("n1") is not None
    assert await lab.ours.bucket(NODES).get("n1") is None


async def test_a_limit_that_the_kernel_refuses_for_a_second_is_an_event_and_so_is_its_end(lab):
    async with lab.agent():
        container = await lab.guarded()
        container.parent_quota_us = 35_000
        for periods in range(3, 16, 3):
            await lab.order(update, {container.key: (90_000, 0)})
            enough = len(lab.batches) + periods
            await until(lambda enough=enough: len(lab.batches) > enough, what="the next attempt")
        told = [event for event in lab.changes if event.change is ContainerChange.LIMIT_REFUSED]
        container.parent_quota_us = 0
        await lab.order(update, {container.key: (90_000, 0)})
        await until(lambda: lab.changes[-1].change is ContainerChange.LIMIT_ACCEPTED, what="its end")

    reason = "the kernel refuses more than 0.35 cores: the group above has 35000"
    assert [(event.container, event.quota_us, event.reason) for event in told] == [(container.key, 35_000, reason)]
    assert lab.changes[-1].reason == f"the kernel accepts it again, after: {reason}"


async def test_drift_is_an_event(lab):
    async with lab.agent():
        container = await lab.guarded()
        container.limit_bytes = 128 * MIB
        await until(lambda: container.limit_bytes == 256 * MIB, what="the old limit")
        await until(lambda: ContainerChange.DRIFTED in [change.change for change in lab.changes], what="the event")

    drifted = next(change for change in lab.changes if change.change is ContainerChange.DRIFTED)
    assert (drifted.container, drifted.limit_bytes) == (container.key, 256 * MIB)
    assert "became 128 MiB, put back" in drifted.reason


async def test_an_event_names_the_process_that_changed_a_quota(lab):
    writer = QuotaWriter(4711, "runc", "a" * 2_000 + "/docker.service")
    async with lab.agent():
        container = await lab.guarded()
        lab.backend.host.quota_writers[container.key] = writer
        container.quota_us = 90_000
        await until(lambda: ContainerChange.DRIFTED in [change.change for change in lab.changes], what="the event")

    drifted = next(change for change in lab.changes if change.change is ContainerChange.DRIFTED)
    assert (drifted.writer.pid, drifted.writer.comm) == (4711, "runc")
    assert drifted.writer.cgroup == "a" * 985 + "/docker.service"  # 1,000 characters
    assert drifted.reason.startswith("modified externally by runc (pid 4711, ...aaa")
    assert drifted.reason.endswith("a/docker.service): quota 30 ms became 90 ms, put back")


async def test_the_watchdog_is_fed_and_what_it_did_is_told(lab):
    async with lab.agent():
        container = await lab.guarded()
        lab.backend.watchdog.reports.append(
            WatchdogReport(container.key, "shop", 5, False, 256 * MIB, 256 * MIB, 256 * MIB, 2_000_000)  # noqa: FBT003
        )
        await until(lambda: OomKind.OOM_KILLER_ENABLED in lab.kinds, what="the watchdog's release")
        calls = lab.backend.watchdog.calls
        assert calls[:2] == ["start", "heartbeat"]
        await until(lambda: "forget_reports" in calls, what="the stream's acknowledgement")

    assert calls[-1] == "stop"
    assert container.calls[-1] == "restore"
    assert lab.backend.closed


async def test_the_heartbeat_says_how_memory_is_guarded(lab):
    async with lab.agent():
        await until(lambda: lab.broker.bucket("tb_nodes").live(), what="a heartbeat")
        entry = await lab.ours.bucket(NODES).get("n1")

    assert entry.message.memory_guard == "sampled"


async def test_a_batch_leaves_before_limits_are_read_back(lab, monkeypatch):
    done = []
    for owner, name in ((MemoryBus, "publish"), (MemoryBus, "write_now"), (Sampler, "read_back")):
        original = getattr(owner, name)

        def noted(*arguments, original=original, name=name):
            done.append(name)
            original(*arguments)

        monkeypatch.setattr(owner, name, noted)
    lab.backend.add("web", quota_us=20_000, limit_bytes=256 * MIB)
    async with lab.agent():
        await until(lambda: lab.batches, what="the first batch")
        await until(lambda: done[-1] == "read_back", what="the end of a sample")
        first = done.index("publish")

        assert done[first : first + 3] == ["publish", "write_now", "read_back"]


async def test_batches_carry_the_reserve(lab):
    async with lab.agent():
        await lab.guarded(reserve_mib=100)

        def carried():
            batch: CfsBatch = lab.batches[-1]
            return (batch.reserve_given_bytes, batch.reserve_used_bytes, batch.reserve_update_seq) == (100 * MIB, 0, 2)

        await until(carried, what="the reserve in a batch")
