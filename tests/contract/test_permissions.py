"""Every user's credentials tried on every subject of the registry, on a real server: as the derived table says."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import itertools
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import nkeys
import pytest
from typer.testing import CliRunner

from schemas.apps import AppSpec
from schemas.codec import decode, encode
from schemas.oom import MemoryReply, MemoryRequest
from schemas.permissions import allowed, grants
from schemas.queries import QueryError
from schemas.remote_memory import SlabReply, SlabRequest
from schemas.roles import Role
from schemas.streams import APPS, LEASES, NODES, OBJECT_STORES, OOM_STREAM, TRAINING_STREAM
from schemas.subjects import (
    LIMIT_UPDATES,
    MEMORY_REQUESTS,
    OOM_EVENTS,
    RECONCILER_STATE,
    ROUTE_EVENTS,
    SLAB_REQUESTS,
    TRAINING_EVENTS,
    token,
)
from schemas.trainings import TrainingChange, TrainingEvent
from services._runtime.bus.api import BusError, BusUnavailableError, Delivery, NotPermittedError
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services._runtime.bus.nats_tap import tap
from services.cli.main import app
from tests.support.bus_lab import node_info
from tests.support.deadline import until
from tests.support.limit_orders import update
from tests.support.oom_events import oom_event
from tests.support.permission_trials import Trial, every_subject, identities
from tests.support.secured_nats import NODES as HOSTS
from tests.support.secured_nats import SecuredNats
from tests.support.websocket import log_in

MINE, OTHERS = HOSTS
SPEC = AppSpec(name="shop", cpu_limit=2, memory_limit=1 << 30)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNats]:
    made = SecuredNats(tmp_path_factory.mktemp("secrets"))
    asyncio.run(made.start())
    asyncio.run(made.declare())
    yield made
    asyncio.run(made.stop())


@pytest.fixture
async def operator(server: SecuredNats) -> AsyncIterator[NatsBus]:
    bus = await server.bus(Role.OPERATOR)
    yield bus
    await bus.close(2)


def memory_request() -> MemoryRequest:
    return MemoryRequest(
        app="shop",
        node=MINE,
        incarnation=1,
        container="web-1",
        wanted_bytes=1,
        usage_bytes=1,
        limit_bytes=1,
        tasks_blocked=False,
        time_ns=1,
    )


@pytest.mark.parametrize(("role", "node"), identities())
async def test_each_user_on_every_subject(server: SecuredNats, role: Role, node: str | None) -> None:
    user = server.user(role, node).identity
    granted = grants(user, "tb")
    subjects = every_subject()
    assert len(subjects) > 150

    async with Trial(server, user) as trial:
        published = await trial.publish(subjects)
        inboxes = [f"_INBOX.{each.public_key}.x.y" for each in server.users] + ["_INBOX.>", "_INBOX.*.>", ">", "tb.>"]
        heard = await trial.subscribe([*subjects, *inboxes])

    assert published == {subject for subject in subjects if allowed(granted.publish, subject)}
    expected = {subject for subject in [*subjects, *inboxes] if allowed(granted.subscribe, subject)}
    assert heard == expected
    assert f"_INBOX.{user.inbox}.x.y" in heard


async def test_a_stranger_is_not_let_in(server: SecuredNats, tmp_path: Path) -> None:
    stranger = SecuredNats(tmp_path)  # whose keys this server does not know
    options = server.options(Role.OPERATOR)
    for changes in ({"nkey_seed_file": stranger.seed_file(Role.OPERATOR)}, {"nkey_seed_file": None}):
        with pytest.raises(BusUnavailableError, match="refuses the credentials"):
            await NatsBus.connect(dataclasses.replace(options, **changes))


# -- what the bus makes of it ----------------------------------------------------------------------------------------


async def test_what_is_refused_is_told_at_once(server: SecuredNats) -> None:
    """Not after the deadline of a request that nobody will answer."""
    agent, started = await server.bus(Role.AGENT, MINE), asyncio.get_running_loop().time()
    forged = update({}, node=OTHERS)

    with pytest.raises(NotPermittedError, match="may not publish to"):
        await agent.request(LIMIT_UPDATES.subject("tb", node=OTHERS), forged, timeout_s=30)
    with pytest.raises(NotPermittedError, match=r"\$KV.tb_nodes.gpu-02"):
        await agent.bucket(NODES).put(OTHERS, node_info(1))
    with pytest.raises(NotPermittedError):
        await agent.bucket(APPS).put("shop", SPEC)
    assert await agent.bucket(NODES).put(MINE, node_info(2)) > 0

    assert asyncio.get_running_loop().time() - started < 25
    await agent.close(2)


async def test_an_observer_reads_and_watches(server: SecuredNats, operator: NatsBus) -> None:
    """Histories and buckets, all without a consumer."""
    agent, observer = await server.bus(Role.AGENT, MINE), await server.bus(Role.OBSERVER)
    subject = OOM_EVENTS.subject("tb", app="shop", node=MINE)
    for number in range(1_203):  # more than two batches
        agent.publish_event(subject, oom_event(node=MINE, time_ns=number), message_id=f"o{number}")
    await agent.flush(20)
    read: list[int] = []
    seen: list[tuple[str, bool]] = []

    await read_stored(observer, OOM_STREAM, OOM_EVENTS.pattern("tb"), 0.0, lambda it: read.append(it.message.time_ns))
    async with observer.bucket(APPS).watch(lambda key, entry: seen.append((key, entry is not None))):
        await operator.bucket(APPS).put("shop", SPEC)
        await until(lambda: ("shop", True) in seen, what="the announced application")
        await operator.bucket(APPS).delete("shop")
        await until(lambda: ("shop", False) in seen, what="its withdrawal")
    with pytest.raises(NotPermittedError):
        await observer.bucket(APPS).put("shop", SPEC)
    with pytest.raises(NotPermittedError, match="may not subscribe"):
        await tap(observer, "tb.>", lambda *_: None)
    await tap(observer, "tb.obs.>", lambda *_: None)

    assert read == list(range(1_203))
    info = await operator.jetstream.stream_info("TB_OOM")
    assert info.state.consumer_count == 0
    for bus in (agent, observer):
        await bus.close(2)


async def test_the_planner_reads_what_hosts_say_of_trainings(server: SecuredNats) -> None:
    runner, planner = await server.bus(Role.RUNNER, MINE), await server.bus(Role.PLANNER)
    event = TrainingEvent(job="j", node=MINE, training="t", sequence=0, change=TrainingChange.SAVED, time_ns=1)
    heard: list[Delivery] = []
    read: list[Delivery] = []

    await planner.subscribe(TRAINING_EVENTS.pattern("tb"), heard.append)
    await planner.flush(60)
    subject = TRAINING_EVENTS.subject("tb", job="j", node=MINE)
    runner.publish_event(subject, event, message_id=event.message_id)
    await runner.flush(60)
    await until(lambda: heard, what="the event")
    await planner.read_stored(TRAINING_STREAM, TRAINING_EVENTS.pattern("tb"), read.append)

    assert [(each.subject, each.message) for each in heard + read] == [(subject.text, event)] * 2
    for bus in (runner, planner):
        await bus.close(2)


async def test_a_host_asks_another_one_for_memory_in_its_own_name_only(server: SecuredNats) -> None:
    """What the daemon bounds what one host may hold by."""
    mine, others = await server.bus(Role.MEMORY, MINE), await server.bus(Role.MEMORY, OTHERS)
    asked: list[str] = []

    async def give(delivery: Delivery) -> SlabReply:
        asked.append(delivery.subject)
        return SlabReply(address="10.0.0.2:1", export="5f" * 32)

    await others.serve(SLAB_REQUESTS.pattern("tb", daemon=OTHERS), give)
    await others.flush(60)
    request = SlabRequest(node=MINE, device="swap", slab_bytes=1 << 20)
    subject = SLAB_REQUESTS.subject("tb", daemon=OTHERS, node=MINE)
    assert isinstance(await mine.request(subject, request, timeout_s=60), SlabReply)
    with pytest.raises(NotPermittedError):
        await mine.request(SLAB_REQUESTS.subject("tb", daemon=OTHERS, node=OTHERS), request, timeout_s=60)

    assert asked == [subject.text]
    for bus in (mine, others):
        await bus.close(2)


async def test_a_reply_subject_is_no_way_around(server: SecuredNats, operator: NatsBus) -> None:
    """The server checks nobody's right to name one; what a host names is a subject of the hosts' account."""
    allocator, agent = await server.bus(Role.ALLOCATOR), server.user(Role.AGENT, MINE).identity
    answered: list[str] = []
    heard: list[str] = []

    async def answer(delivery: Delivery) -> MemoryReply:
        answered.append(delivery.subject)
        return MemoryReply(app="shop", epoch=1, granted_bytes=1, reclaiming_bytes=0, denial="")

    subject = MEMORY_REQUESTS.subject("tb", app="shop", node=MINE)
    await allocator.serve(subject, answer)
    await allocator.flush(5)
    await tap(operator, "tb.evt.>", lambda subject, _data: heard.append(subject))
    targets = ("$KV.tb_leases.app/shop", "tb.evt.oom.shop.gpu-02")
    async with Trial(server, agent) as trial:
        for target in targets:
            await trial.client.publish(subject.text, encode(memory_request()), reply=target)
        await trial.client.flush()
        assert trial.refused["publish"] == set()  # the server lets it pass
        await trial.client.request(subject.text, encode(memory_request()), timeout=5)
        await until(lambda: len(answered) == len(targets) + 1, what="the answers")
    await allocator.flush(5)
    await operator.flush(5)

    assert heard == []
    assert (await operator.bucket(LEASES).get("app.shop"), await operator.bucket(LEASES).get("app.other")) == (
        None,
        None,
    )
    await allocator.close(2)


async def test_a_host_asks_for_no_memory_in_another_s_name(server: SecuredNats) -> None:
    """The server permits its own subject only, and there a message that names another node is not read."""
    allocator, intruder = await server.bus(Role.ALLOCATOR), server.user(Role.AGENT, OTHERS).identity
    answered: list[str] = []

    async def answer(delivery: Delivery) -> MemoryReply:
        answered.append(delivery.subject)
        return MemoryReply(app="shop", epoch=1, granted_bytes=1, reclaiming_bytes=0, denial="")

    await allocator.serve(MEMORY_REQUESTS.pattern("tb", app="shop"), answer)
    await allocator.flush(5)
    own, other = (MEMORY_REQUESTS.subject("tb", app="shop", node=node).text for node in (OTHERS, MINE))
    async with Trial(server, intruder) as trial:
        await trial.client.publish(other, encode(memory_request()))
        refusal = decode((await trial.client.request(own, encode(memory_request()), timeout=5)).data)
        assert trial.refused["publish"] == {other}

    assert isinstance(refusal, QueryError)
    assert "names another node than its subject" in refusal.message
    assert answered == []
    await allocator.close(2)


async def test_a_service_answers_at_inboxes_only(server: SecuredNats) -> None:
    """Also where the server does not replace the reply subject: of what passes to hosts as it is."""
    reconciler, asker = await server.bus(Role.RECONCILER, MINE), server.user(Role.OPERATOR).identity
    subject = RECONCILER_STATE.subject("tb", node=MINE)

    async def answer(delivery: Delivery) -> MemoryReply:
        raise AssertionError(delivery.subject)

    await reconciler.serve(subject, answer)
    await reconciler.flush(5)
    async with Trial(server, asker) as trial:
        await trial.client.publish(subject.text, b"", reply=ROUTE_EVENTS.subject("tb", node=MINE).text)
        await trial.client.flush()
    await until(lambda: reconciler.counters.get("undecodable_no_reply_subject", 0) == 1, what="the refusal")
    await reconciler.close(2)


async def test_an_observer_has_nothing_written_by_others(server: SecuredNats, operator: NatsBus) -> None:
    """Not by the server itself, either: its answers stay in the observers' own account."""
    await operator.bucket(APPS).put("other", SPEC.model_copy(update={"name": "other"}))
    heard: list[str] = []
    lease, order = "$KV.tb_leases.app/other", LIMIT_UPDATES.subject("tb", node=MINE).text
    agent = await server.bus(Role.AGENT, MINE)
    await tap(agent, order, lambda subject, _data: heard.append(subject))
    async with Trial(server, server.user(Role.OBSERVER).identity) as trial:
        for reply in (lease, order):
            await trial.client.publish("$JS.API.STREAM.INFO.KV_tb_apps", b"", reply=reply)
            await trial.client.publish("$JS.API.STREAM.MSG.GET.KV_tb_apps", b'{"seq":1}', reply=reply)
            await trial.client.publish("$JS.API.DIRECT.GET.TB_OOM", b'{"seq":1}', reply=reply)
        info = await trial.client.request("$JS.API.STREAM.INFO.KV_tb_apps", b"", timeout=5)  # so all were answered
        assert b"stream_info_response" in info.data
    await agent.flush(5)

    assert heard == []
    assert (await operator.bucket(LEASES).get("app.shop"), await operator.bucket(LEASES).get("app.other")) == (
        None,
        None,
    )
    await operator.bucket(APPS).delete("other")
    await agent.close(2)


async def test_observers_and_nobody_else_come_by_websocket(server: SecuredNats) -> None:
    seeds = {role: server.seed(role) for role in (Role.OBSERVER, Role.OPERATOR)}
    said = {role: await log_in(server.websocket_port, seed) for role, seed in seeds.items()}

    assert said[Role.OBSERVER].startswith("PONG")
    assert "Authorization Violation" in said[Role.OPERATOR]


async def test_one_host_s_connections_leave_room_for_the_centre_s(tmp_path: Path) -> None:
    """The server bounds them by account, and what one connection may subscribe to."""
    async with SecuredNats(tmp_path / "secrets") as server:
        inbox, seed = server.user(Role.AGENT, MINE).identity.inbox, server.seed(Role.AGENT, MINE)
        with ExitStack() as stack:
            connection, said = _log_in(stack, server, seed)
            assert said == b"PONG\r\n"
            connection.sendall(b"".join(b"SUB _INBOX.%s.%d %d\r\n" % (inbox.encode(), n, n) for n in range(1_001)))
            assert connection.recv(100) == b"-ERR 'maximum subscriptions exceeded'\r\n"
            refused = [said for _ in range(600) if (said := _log_in(stack, server, seed)[1]) != b"PONG\r\n"]
            allocator = await server.bus(Role.ALLOCATOR)
            await allocator.close(2)

        assert set(refused) == {b"-ERR 'maximum account active connections exceeded'\r\n"}
        assert 0 < len(refused) < 100


def _log_in(stack: ExitStack, server: SecuredNats, seed: bytes) -> tuple[socket.socket, bytes]:
    """A bare connection, and what the server says of it."""
    connection = stack.enter_context(socket.create_connection((server.host, server.port), 60))
    nonce = json.loads(connection.recv(4096).removeprefix(b"INFO "))["nonce"].encode()
    keys = nkeys.from_seed(bytearray(seed.strip()))
    signature = base64.urlsafe_b64encode(keys.sign(nonce)).rstrip(b"=").decode()
    connect = {"verbose": False, "nkey": keys.public_key.decode(), "sig": signature}
    connection.sendall(f"CONNECT {json.dumps(connect)}\r\nPING\r\n".encode())
    return connection, connection.recv(4096)


async def test_only_the_administrator_declares(tmp_path: Path) -> None:
    """On a new server services wait for it, and lose nothing."""
    async with SecuredNats(tmp_path / "secrets") as server:
        agent, allocator = await server.bus(Role.AGENT, MINE), await server.bus(Role.ALLOCATOR)
        assert agent.undeclared == ["TB_CONTAINER", "TB_OOM", "KV_tb_apps", "KV_tb_nodes", "KV_tb_pod_selectors"]
        assert allocator.undeclared == ["TB_CONTAINER", "TB_SAVINGS", "KV_tb_apps", "KV_tb_leases", "KV_tb_nodes"]
        agent.publish_event(OOM_EVENTS.subject("tb", app="shop", node=MINE), oom_event(), message_id="1")
        seen: list[str] = []
        with pytest.raises(BusError):
            await agent.flush(0.3)

        async with allocator.bucket(NODES).watch(lambda key, _: seen.append(key)):
            await server.declare()
            await agent.bucket(NODES).put(MINE, node_info(1))
            await agent.flush(10)
            await until(lambda: seen == [MINE], what="the registration")
        operator = await server.bus(Role.OPERATOR)

        assert (await operator.jetstream.stream_info("TB_OOM")).state.messages == 1
        for bus in (agent, allocator, operator):
            await bus.close(2)


# -- the command -----------------------------------------------------------------------------------------------------


def _config(out: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["nats", "config", "--out", str(out), *arguments])
    return done.exit_code, done.output


def test_keys_are_kept_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    assert _config(tmp_path, "--node", MINE)[0] == 0
    seeds = {path.name: path.read_text() for path in (tmp_path / "secrets").glob("*.nk")}
    assert set(seeds) == {
        *(f"{role}.nk" for role in ("allocator", "collector", "advisor", "kubeoperator", "planner", "scheduler")),
        "aggregator.nk",
        "trainer.nk",
        *(f"{role}.nk" for role in ("administrator", "operator", "observer")),
        *(f"{role}-{MINE}.nk" for role in ("agent", "reconciler", "fast_path", "runner", "memory")),
    }
    for path in (tmp_path / "secrets").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700

    assert _config(tmp_path / "with-slurm", "--slurm")[0] == 0
    assert (tmp_path / "with-slurm" / "secrets" / "slurm.nk").exists()

    code, text = _config(tmp_path, "--node", OTHERS)
    assert code == 0
    assert f"agent-{MINE} has a seed but is no user any more" in text
    assert {path.name: path.read_text() for path in (tmp_path / "secrets").glob("*.nk") if path.name in seeds} == seeds

    public = "".join(path.read_text() for path in tmp_path.glob("*.conf")) + text
    for seed in seeds.values():
        assert seed.strip() not in public


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cluster", "a,b"), "three or five"),
        (("--cluster", "a,b,a"), "three or five"),
        (("--owner", "me"), "UID"),
        (("--root", "a.b"), "one token"),
        (("--node", ""), "must not be empty"),
    ],
)
def test_bad_options(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    code, text = _config(tmp_path / "out", *arguments)

    assert code != 0
    assert said in text


def test_a_spoiled_seed_is_named_and_not_shown(tmp_path: Path) -> None:
    _config(tmp_path)
    seed = tmp_path / "secrets" / "allocator.nk"
    spoiled = seed.read_text().strip()[:30]
    seed.write_text(spoiled)

    code, text = _config(tmp_path)

    assert code == 78
    assert "holds no NKEY seed" in text.replace("\n", " ")
    assert spoiled not in text


def test_keys_of_another_user_are_named(tmp_path: Path) -> None:
    """As after `--owner`: then nobody else looks into the directory."""
    _config(tmp_path)
    secrets, me = tmp_path / "secrets", os.geteuid()
    secrets.chmod(0)
    os.seteuid(me or 65534)
    try:
        code, text = _config(tmp_path)
    finally:
        os.seteuid(me)
        secrets.chmod(0o700)

    assert code == 78
    assert "secrets/advisor.nk cannot be read: Permission denied" in text.replace("\n", "")


async def test_people_other_than_administrators_declare_nothing(
    server: SecuredNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    for role, code in ((Role.ADMINISTRATOR, 0), (Role.OPERATOR, 77), (Role.OBSERVER, 77)):
        for name, value in server.environment(role).items():
            monkeypatch.setenv(name, value)
        done = await asyncio.to_thread(CliRunner().invoke, app, ["nats", "declare", "--json"])
        assert (done.exit_code, "needs the administrator's key" in done.output) == (code, bool(code)), done.output
        if code:
            assert json.loads(done.stderr)["error"]["kind"] == "no_permission"
        else:
            declared = json.loads(done.stdout)
            assert ("TB_OOM" in declared["streams"], "tb_nodes" in declared["buckets"]) == (True, True)
            assert len(declared["object_stores"]) == len(OBJECT_STORES)


def test_the_hosts_of_these_tests_need_escaping() -> None:
    assert any(token(host) != host for host in HOSTS)
    assert all(a != b for a, b in itertools.combinations(HOSTS, 2))
