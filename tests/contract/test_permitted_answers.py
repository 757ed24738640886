"""Every question that somebody may ask gets its answer: each asker and each answering service with its own key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from nats.aio.msg import Msg

from schemas.permissions import MAPPED_INBOX, NODE_ROLES, Identity, allowed, grants
from schemas.registry import CHANNELS, ENDPOINTS
from schemas.roles import Role
from schemas.subjects import SLAB_REQUESTS, SubjectTemplate
from tests.support.permission_trials import MINE, OTHERS, Trial, concrete, passes_as_it_is
from tests.support.secured_nats import SecuredNats

_QUESTIONS = [channel.template for channel in CHANNELS if channel.reply is not None]
_QUESTIONS += [endpoint.template for endpoint in ENDPOINTS]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNats]:
    made = SecuredNats(tmp_path_factory.mktemp("secrets"))
    asyncio.run(made.start())
    yield made
    asyncio.run(made.stop())


def _users(server: SecuredNats) -> list[Identity]:
    """One of each role, of one host."""
    return [user.identity for user in server.users if user.identity.node in {None, MINE}]


def _answering(server: SecuredNats, subject: str) -> list[Identity]:
    return [user.identity for user in server.users if allowed(grants(user.identity, "tb").subscribe, subject)]


@pytest.mark.parametrize("template", _QUESTIONS, ids=lambda each: each.text)
async def test_whoever_may_ask_is_answered(server: SecuredNats, template: SubjectTemplate) -> None:
    subject = concrete(template, MINE)
    if template is SLAB_REQUESTS:  # of another host
        subject = template.subject("tb", daemon=OTHERS, node=MINE).text
    askers = [user for user in _users(server) if allowed(grants(user, "tb").publish, subject)]
    assert askers, "nobody may ask"
    services = _answering(server, subject)
    assert {service.role for service in services} in [{services[0].role}, {Role.RUNNER, Role.SLURM}]
    for service in services:
        await _is_answered(server, subject, service, askers)


async def _is_answered(server: SecuredNats, subject: str, service: Identity, askers: list[Identity]) -> None:
    replies: list[str] = []

    async with Trial(server, service) as answering:

        async def answer(message: Msg) -> None:
            replies.append(message.reply)
            await message.respond(b"answer to " + message.data)

        await answering.client.subscribe(subject, cb=answer)
        await answering.client.flush()
        for asker in askers:
            async with Trial(server, asker) as asking:
                reply = await asking.client.request(subject, asker.name.encode(), timeout=10)
                assert reply.data == b"answer to " + asker.name.encode()
        assert answering.refused["publish"] == set()
    mapped = [user for user in askers if not passes_as_it_is(user.role, service.role, subject)]
    assert len([reply for reply in replies if reply.startswith(f"{MAPPED_INBOX}.")]) == len(mapped)
    if service.role in {*NODE_ROLES, Role.SLURM}:
        assert {user.role for user in mapped} <= {Role.OBSERVER}, "orders are answered at 128 random bits"
    else:
        assert mapped == askers, "who asks can name no subject of the account that answers"


@pytest.mark.parametrize("node_role", NODE_ROLES)
async def test_what_a_service_asks_the_server_is_answered(server: SecuredNats, node_role: Role) -> None:
    """JetStream's own interface, with each host's key: what the service reads at its start."""
    await server.declare()
    user = server.user(node_role, MINE).identity
    names = [pattern for pattern in grants(user, "tb").publish if pattern.startswith("$JS.API.STREAM.INFO.")]
    assert names
    async with Trial(server, user) as asking:
        for name in names:
            reply = await asking.client.request(name, b"", timeout=10)
            assert b'"config"' in reply.data, reply.data
