"""What a user of the bus could reach beyond its permissions: by replies, headers, and answers of others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from schemas.permissions import Grants, Identity, allowed, grants
from schemas.roles import Role
from tests.support.permission_trials import Trial, every_subject, identities, passes_as_it_is
from tests.support.secured_nats import SecuredNats


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNats]:
    made = SecuredNats(tmp_path_factory.mktemp("secrets"))
    asyncio.run(made.start())
    asyncio.run(made.declare())
    yield made
    asyncio.run(made.stop())


def _all_grants(server: SecuredNats) -> dict[str, tuple[Identity, Grants]]:
    return {user.identity.name: (user.identity, grants(user.identity, "tb")) for user in server.users}


def _bait(server: SecuredNats, user: Identity) -> tuple[str, Identity] | None:
    """A subject that the user hears with its reply subject, and who publishes it: the user itself, if it may."""
    everyone = _all_grants(server)
    heard = [subject for subject in every_subject() if allowed(everyone[user.name][1].subscribe, subject)]
    heard.append(f"_INBOX.{user.inbox}.bait")
    found = (
        (subject, identity)
        for _, (identity, granted) in sorted(everyone.items(), key=lambda each: each[0] != user.name)
        for subject in heard
        if allowed(granted.publish, subject) and not subject.startswith("$")
        if passes_as_it_is(identity.role, user.role, subject)
    )
    return next(found, None)


@pytest.mark.parametrize(("role", "node"), identities())
async def test_a_received_message_gives_no_right_to_its_reply_subject(
    server: SecuredNats, role: Role, node: str | None
) -> None:
    """Each user is sent (where it may: sends itself) a message for each subject, naming that as its reply subject."""
    user = server.user(role, node).identity
    granted, subjects = grants(user, "tb"), every_subject()
    bait = _bait(server, user)
    assert bait is not None or role in {Role.AGGREGATOR, Role.TRAINER, Role.ADMINISTRATOR}
    subject, publisher = bait or ("", user)
    async with Trial(server, user) as trial, Trial(server, publisher) as other:
        if bait is not None:
            await trial.take_baits(subject, trial if publisher == user else other, subjects)
        published = await trial.publish(subjects)

    assert published == {each for each in subjects if allowed(granted.publish, each)}


@pytest.mark.parametrize(("role", "node"), identities())
async def test_a_trace_header_leads_nowhere_else(server: SecuredNats, role: Role, node: str | None) -> None:
    user = server.user(role, node).identity
    granted, subjects = grants(user, "tb"), every_subject()
    own = next(each for each in subjects if allowed(granted.publish, each))
    async with Trial(server, user) as trial:
        traced = await trial.trace_to(own, subjects)

    assert traced == {each for each in subjects if allowed(granted.publish, each)}
