"""Where the server's own answers go when a user names the reply subject: nowhere but in the user's own account.

The server checks nobody's right to name a reply subject. Each role has an account of its own, where an answer may go
anywhere, and is stored nowhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import StreamConfig

from schemas.apps import AppSpec
from schemas.codec import CodecError, encode
from schemas.permissions import Identity, allowed, grants
from schemas.roles import Role
from schemas.streams import BUCKETS, OBJECT_STORES, OOM_STREAM, STREAMS
from schemas.subjects import CFS, OOM_EVENTS
from services._runtime.bus.dispatch import decode_from
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services.cli.nats.accounts import ACCOUNTS, HOSTS, STORE, account_of
from services.cli.nats.config import USERS_FILE, users_text
from tests.support.deadline import until
from tests.support.oom_events import oom_event
from tests.support.permission_trials import MINE, OTHERS, Trial, every_subject, identities
from tests.support.secured_nats import SecuredNats

OWN_FACT = OOM_EVENTS.subject("tb", app="shop", node=MINE).text
READING = ("$JS.API.INFO", "$JS.API.STREAM.INFO.", "$JS.API.STREAM.MSG.GET.")
NOT_ANSWERED = ("tb.obs.", "tb.cmd.", "$SRV.")


async def stored(administrator: NatsBus) -> dict[str, int]:
    """Messages per subject, of everything that is kept; where only the newest is, so many as the stream ever took."""
    found: dict[str, int] = {}
    names = [each.stream_name("tb") for each in STREAMS] + [f"KV_{each.bucket_name('tb')}" for each in BUCKETS]
    newest_only = {each.stream_name("tb") for each in STREAMS if each.newest_per_subject}
    for name in [*names, "OBJ_tb_models"]:
        info = await administrator.jetstream.stream_info(name, subjects_filter=">")
        subjects = info.state.subjects or {}
        found |= dict.fromkeys(subjects, info.state.last_seq) if name in newest_only else subjects
    return found


async def test_acknowledgements_push_nobody_elses_facts_out(tmp_path: Path) -> None:
    """A fact whose reply subject is another host's fact subject, more often than facts are kept of a host."""
    limit = OOM_STREAM.max_messages_per_host
    assert limit is not None
    times: list[int] = []
    subject = OOM_EVENTS.subject("tb", app="shop", node=OTHERS)
    async with SecuredNats(tmp_path / "secrets") as server:
        administrator, victim = await server.bus(Role.ADMINISTRATOR), await server.bus(Role.AGENT, OTHERS)
        for number in range(3):
            victim.publish_event(subject, oom_event(node=OTHERS, time_ns=number), message_id=f"{number}")
        await victim.flush(10)
        async with Trial(server, server.user(Role.AGENT, MINE).identity) as trial:
            for number in range(limit + 100):
                await trial.client.publish(OWN_FACT, b"x", reply=subject.text)
                if number % 100 == 0:
                    await trial.client.flush()
            await trial.client.request(OWN_FACT, b"the last", timeout=30)
        victim.publish_event(subject, oom_event(node=OTHERS, time_ns=3), message_id="3")  # behind all that was sent
        await victim.flush(30)
        await read_stored(
            administrator,
            OOM_STREAM,
            OOM_EVENTS.pattern("tb"),
            0.0,
            lambda it: times.append(it.message.time_ns) if it.message.node == OTHERS else None,
        )
        kept = await stored(administrator)
        for bus in (administrator, victim):
            await bus.close(2)

    assert kept == {"tb.evt.oom.gpu-02": 4, "tb.evt.oom.gpu-01/example": limit}
    assert times == [0, 1, 2, 3]


class _Overheard(SecuredNats):
    """With one more user in each account, who may publish and subscribe everything there."""

    def _configuration(self) -> str:
        text = super()._configuration()
        path = self.log_path.parent / USERS_FILE
        spied = re.sub(
            r"^  (\w+) \{$(.*?)^    users: \[$",
            rf"  \1 {{\2    users: [ {{ user: \1, password: {_PASSWORD} }}",
            path.read_text(),
            flags=re.MULTILINE | re.DOTALL,
        )
        path.write_text(spied)
        return text

    async def spy(self, account: str) -> Client:
        """A connection that may do anything in an account."""
        return await nats.connect(self.url, user=account, password=_PASSWORD)


_PASSWORD = "overheard"


@pytest.fixture(scope="module")
def overheard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Overheard]:
    made = _Overheard(tmp_path_factory.mktemp("overheard"))
    asyncio.run(made.start())
    asyncio.run(_store_something(made))
    yield made
    asyncio.run(made.stop())


NAMES = [
    *(each.stream_name("tb") for each in STREAMS),
    *(f"KV_{each.bucket_name('tb')}" for each in BUCKETS),
    *(f"OBJ_{each.bucket_name('tb')}" for each in OBJECT_STORES),
]
TARGETS = sorted(
    {
        *(each for each in every_subject() if not each.startswith(("$JS.ACK.", "$SRV.", "$SYS."))),
        *(f"$JS.API.STREAM.{verb}.{name}" for verb in ("DELETE", "PURGE", "UPDATE", "CREATE") for name in NAMES),
        *(f"$JS.API.CONSUMER.CREATE.{name}{more}" for name in NAMES for more in ("", ".c")),
        "$JS.API.STREAM.CREATE.NEW",
    }
)
"""Subjects that do something, or are stored, or received."""


async def _store_something(server: _Overheard) -> None:
    """In each stream: an application's specification, and nothing at all."""
    await server.declare()
    store = await server.spy(STORE)
    jetstream = store.jetstream()
    for name in NAMES:
        pattern = (await jetstream.stream_info(name)).config.subjects[0]
        for data in (encode(AppSpec(name="x.1", cpu_limit=1, memory_limit=1 << 30)), b""):
            subject = pattern.replace("*", "gpu-02").replace(">", "x")
            await jetstream.publish(subject if data or "*" not in pattern else pattern.replace("*", "gpu-03"), data)
    await store.close()


def _payloads(api: str) -> list[bytes]:
    """What makes the server answer with stored bytes, with an empty message, and with an error."""
    if ".DIRECT.GET." in api:
        return [b'{"seq":1}', b'{"seq":2}', b'{"last_by_subj":"nothing"}', b'{"batch":2,"seq":1}']
    return [b'{"seq":1}', b'{"seq":9999}'] if ".MSG.GET." in api else [b"", b"x"]


def _reply_subjects(user: Identity) -> list[str]:
    """Those that the user may not publish to."""
    return [each for each in TARGETS if not allowed(grants(user, "tb").publish, each)]


@pytest.mark.parametrize(("role", "node"), [each for each in identities() if each[0] is not Role.ADMINISTRATOR])
async def test_no_answer_leaves_the_account_of_who_asked(overheard: _Overheard, role: Role, node: str | None) -> None:
    """Each request that a user may make, with each subject that it may not publish to named as the reply subject."""
    user = overheard.user(role, node).identity
    own = [each for each in every_subject() if allowed(grants(user, "tb").publish, each)]
    before, accounts = await _configurations(overheard), [each for each in ACCOUNTS if each != account_of(role)]
    targets = _reply_subjects(user)
    spies = [await overheard.spy(each) for each in accounts]
    received: dict[str, set[str]] = {account: set() for account in accounts}
    for account, spy in zip(accounts, spies, strict=True):
        for target in targets:
            await spy.subscribe(target, cb=_noting(received[account]))
        await spy.flush()
        await spy.flush()
    async with Trial(overheard, user) as trial:
        for subject in own:
            for payload in _payloads(subject):
                for target in targets:
                    await trial.client.publish(subject, payload, reply=target)
                if not subject.startswith(NOT_ANSWERED):
                    await trial.client.request(subject, payload, timeout=60)  # so the others were answered before
        assert trial.refused["publish"] == set()
    for spy in spies:
        await spy.flush()
        await spy.close()

    # nats-server 2.15.1: an answer follows an import of JetStream's interface. All that is imported of it is what the
    # user may ask itself, or, of hosts, what only reads; and then it is answered nowhere.
    read_only = {each for each in received[STORE] if each.startswith(READING)}
    assert received == {account: read_only if account == STORE else set() for account in accounts}
    assert read_only <= {"$JS.API.INFO"} or account_of(role) == HOSTS
    assert await _configurations(overheard) == before


def _noting(subjects: set[str]) -> Callable[[Msg], Awaitable[None]]:
    async def note(message: Msg) -> None:
        subjects.add(message.subject)

    return note


async def _configurations(server: _Overheard) -> dict[str, tuple[StreamConfig, object]]:
    """Of what there is, and when it was made."""
    store = await server.spy(STORE)
    found = {each.config.name or "": (each.config, each.created) for each in await store.jetstream().streams_info()}
    await store.close()
    assert set(found) == set(NAMES)
    return found


@pytest.mark.parametrize(("role", "node"), [(Role.OBSERVER, None), (Role.AGENT, MINE), (Role.RUNNER, MINE)])
async def test_an_answer_in_a_shared_account_is_no_message(overheard: _Overheard, role: Role, node: str | None) -> None:
    """What other observers, or other hosts, receive there they do not take for one."""
    user = overheard.user(role, node).identity
    own = [each for each in every_subject() if allowed(grants(user, "tb").publish, each)]
    received: list[tuple[str, bytes]] = []
    spy = await overheard.spy(account_of(role))
    target = CFS.subject("tb", app="x.1", node=OTHERS).text

    async def take(message: Msg) -> None:
        received.append((message.subject, message.data))

    await spy.subscribe(target, cb=take)
    await spy.flush()
    async with Trial(overheard, user) as trial:
        asked = [(each, payload) for each in own if each.startswith("$JS.API.") for payload in _payloads(each)]
        for subject, payload in asked:
            await trial.client.publish(subject, payload, reply=target)
        await until(lambda: len(received) == len(asked), what="the server's answers")
    await spy.close()

    assert len(asked) > 4
    for subject, data in received:
        with pytest.raises(CodecError):
            decode_from(subject, data)


class _OneAccount(SecuredNats):
    """As configured by version 0.1.0: hosts in the account of the services."""

    def _configuration(self) -> str:
        text = super()._configuration()
        keys = ", ".join(f"{{ nkey: {user.public_key} }}" for user in self.users)
        (self.log_path.parent / USERS_FILE).write_text(
            f"accounts {{ TURNBUCKLE {{ jetstream: enabled, users: [{keys}] }} }}"
        )
        return text

    async def reload(self) -> None:
        """Read the configuration again."""
        before = self._reloads()
        assert self.pid is not None
        os.kill(self.pid, signal.SIGHUP)
        await until(lambda: self._reloads() > before, what="the server's word that it has reloaded")

    def _reloads(self) -> int:
        return self.log_path.read_text().count("Reloaded server configuration")


async def test_a_server_of_an_older_version_is_reloaded_twice(tmp_path: Path) -> None:
    """As docs/operations.md says: after the first reload the new account's imports of services are not there yet."""
    async with _OneAccount(tmp_path / "secrets") as server:
        administrator = await server.bus(Role.ADMINISTRATOR)
        async with Trial(server, server.user(Role.AGENT, MINE).identity) as trial:
            await trial.client.request(OWN_FACT, b"x", timeout=10)
        (server.log_path.parent / USERS_FILE).write_text(users_text(server.users, server.root))
        await server.reload()
        await server.reload()
        async with Trial(server, server.user(Role.AGENT, MINE).identity) as trial:
            answer = await trial.client.request(OWN_FACT, b"x", timeout=10)
            await trial.client.publish(OWN_FACT, b"x", reply=f"tb.evt.oom.shop.{OTHERS}")
            await trial.client.request(OWN_FACT, b"x", timeout=10)
        kept = await stored(administrator)
        await administrator.close(2)

    assert json.loads(answer.data)["seq"] == 2, "what was stored is there, and it is the same stream"
    assert kept == {"tb.evt.oom.gpu-01/example": 4}
