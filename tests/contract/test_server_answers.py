"""Where the server's own answers go, when a host's user names the reply subject: nowhere that anything is stored.

The server checks nobody's right to name a reply subject. Hosts have an account of their own, where an answer may go
anywhere, and is stored nowhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from schemas.permissions import NODE_ROLES, Role, allowed, grants
from schemas.streams import BUCKETS, OOM_STREAM, STREAMS
from schemas.subjects import OOM_EVENTS, token
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services.cli.nats.config import USERS_FILE, users_text
from tests.support.deadline import until
from tests.support.oom_events import oom_event
from tests.support.permission_trials import MINE, OTHERS, Trial, every_subject
from tests.support.secured_nats import SecuredNats

OWN_FACT = OOM_EVENTS.subject("tb", app="shop", node=MINE).text
STORED = ("tb.evt.", "$KV.", "$O.")
NOT_ANSWERED = ("tb.obs.", "tb.cmd.")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNats]:
    made = SecuredNats(tmp_path_factory.mktemp("secrets"))
    asyncio.run(made.start())
    yield made
    asyncio.run(made.stop())


@pytest.fixture
async def administrator(server: SecuredNats) -> AsyncIterator[NatsBus]:
    bus = await server.bus(Role.ADMINISTRATOR)
    assert bus.undeclared == []
    yield bus
    await bus.close(2)


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


@pytest.mark.parametrize("role", NODE_ROLES)
async def test_an_answer_to_a_host_is_stored_nowhere(server: SecuredNats, administrator: NatsBus, role: Role) -> None:
    """Whatever the user may ask or publish, and whichever stored subject it names to be answered at."""
    user = server.user(role, MINE).identity
    own = [each for each in every_subject() if allowed(grants(user, "tb").publish, each)]
    targets = [each for each in every_subject() if each.startswith(STORED) and each not in own]
    assert any(each.startswith("$JS.API.") for each in own)
    assert len(targets) > 15
    before = await stored(administrator)
    async with Trial(server, user) as trial:
        for subject in own:
            for target in targets:
                await trial.client.publish(subject, b"x", reply=target)
        for subject in own:
            if not subject.startswith(NOT_ANSWERED):
                await trial.client.request(subject, b"x", timeout=10)  # so the others were answered before
        assert trial.refused["publish"] == set()
    written = await write_last(server, role.value)
    new = {key: count - before.get(key, 0) for key, count in (await stored(administrator)).items()}

    assert {key for key, count in new.items() if count and not key.endswith("gpu-01/example")} == written
    assert {new[key] for key in written} == {1}


async def write_last(server: SecuredNats, name: str) -> set[str]:
    """Something to everything that is stored, behind what is on its way there; where it is stored."""
    written: set[str] = set()
    for role, node in (
        (Role.AGENT, OTHERS),
        (Role.RECONCILER, OTHERS),
        (Role.COLLECTOR, None),
        (Role.ADVISOR, None),
        (Role.ADMINISTRATOR, None),
    ):
        user = server.user(role, node).identity
        async with Trial(server, user) as trial:
            for subject in every_subject():
                if not subject.startswith("tb.evt.") or not allowed(grants(user, "tb").publish, subject):
                    continue
                answer = await trial.client.request(subject, b"x", timeout=10)
                assert "error" not in json.loads(answer.data), answer.data
                written.add(subject.replace(f".{token('x.1')}.", ".") if node else subject)
            if role is Role.ADMINISTRATOR:
                buckets = [f"$KV.{each.bucket_name('tb')}" for each in BUCKETS]
                for subject in (*(f"{bucket}.{name}" for bucket in buckets), f"$O.tb_models.M.{name}"):
                    await trial.client.request(subject, b"x", timeout=10)
                    written.add(subject)
    return written


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
