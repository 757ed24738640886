"""What the derived permissions promise, whatever the registry will hold."""

from __future__ import annotations

import itertools

import pytest

from schemas.permissions import NODE_ROLES, READ_ONLY, Grants, Identity, allowed, grants, uses
from schemas.registry import CHANNELS, ENDPOINTS
from schemas.roles import Role
from schemas.streams import BUCKETS, OBJECT_STORES, STREAMS
from schemas.subjects import (
    CFS,
    CONTAINER_EVENTS,
    LIMIT_UPDATES,
    LIMITS_APPLIED,
    OOM_EVENTS,
    ROUTE_EVENTS,
    TC_EVENTS,
    SubjectTemplate,
    token,
)

NODES = ("gpu-01.example", "gpu-02")
USERS = tuple(
    Identity(role, node, inbox=f"K{role}{number}".replace("_", ""))
    for role in Role
    for number, node in enumerate(NODES if role in NODE_ROLES else (None,))
)
GRANTS: dict[str, Grants] = {user.name: grants(user, "tb") for user in USERS}


def users(*roles: Role) -> list[Identity]:
    return [user for user in USERS if user.role in roles]


def may_publish(subject: str) -> set[str]:
    return {name for name, granted in GRANTS.items() if allowed(granted.publish, subject)}


def may_hear(subject: str) -> set[str]:
    return {name for name, granted in GRANTS.items() if allowed(granted.subscribe, subject)}


def may_answer(name: str) -> set[str]:
    kinds = {"inboxes": "_INBOX.x.y", "mapped inboxes": "_R_.x.y"}
    return {kind for kind, subject in kinds.items() if allowed(GRANTS[name].publish, subject)}


def concrete(template: SubjectTemplate, node: str = NODES[0]) -> str:
    # One host asks another. To ask itself is in its pattern, too, and gives it nothing: no role has `allow_responses`.
    values = {"node": node, "daemon": next(each for each in NODES if each != node)}
    return template.subject("tb", **{name: values.get(name, "x1") for name in template.parameters}).text


def test_only_the_allocator_orders() -> None:
    for node in NODES:
        assert may_publish(concrete(LIMIT_UPDATES, node)) == {"allocator"}


def test_only_its_own_agent_hears_an_order() -> None:
    for node in NODES:
        assert may_hear(concrete(LIMIT_UPDATES, node)) == {f"agent-{node}"}


@pytest.mark.parametrize("template", [CFS, LIMITS_APPLIED, CONTAINER_EVENTS, OOM_EVENTS], ids=lambda each: each.text)
def test_an_agent_speaks_for_its_own_node(template: SubjectTemplate) -> None:
    for node in NODES:
        speakers = may_publish(concrete(template, node))
        assert speakers - {"allocator"} == {f"agent-{node}"}
        assert ("allocator" in speakers) == (template is CONTAINER_EVENTS)  # it refuses containers


def test_only_people_hear_which_limits_were_applied() -> None:
    for node in NODES:
        assert may_hear(concrete(LIMITS_APPLIED, node)) == {"operator", "observer"}


def test_a_reconciler_hears_the_route_events_of_all_hosts_and_reads_none_that_are_stored() -> None:
    for node in NODES:
        assert may_publish(concrete(ROUTE_EVENTS, node)) == {f"reconciler-{node}", f"fast_path-{node}"}
        reconcilers = {f"reconciler-{each}" for each in NODES}
        assert may_hear(concrete(ROUTE_EVENTS, node)) == {*reconcilers, "scheduler", "operator", "observer"}
        assert may_hear(concrete(TC_EVENTS, node)) == {"operator", "observer"}
    for request in ("STREAM.MSG.GET.TB_ROUTE", "DIRECT.GET.TB_ROUTE", "CONSUMER.CREATE.TB_ROUTE.c"):
        assert not may_publish(f"$JS.API.{request}") & {f"reconciler-{node}" for node in NODES}


def test_whatever_names_a_node_is_said_by_users_of_that_node_or_in_the_centre() -> None:
    for channel in CHANNELS:
        if "node" not in channel.template.parameters:
            continue
        for name in may_publish(concrete(channel.template)):
            user = next(each for each in USERS if each.name == name)
            assert user.node in {None, NODES[0]}, (channel.template.text, name)


def test_nobody_hears_the_replies_to_others() -> None:
    for user, other in itertools.product(USERS, USERS):
        heard = user.name in may_hear(f"_INBOX.{other.inbox}.a.b")
        assert heard == (user.name == other.name)
    assert may_hear("_INBOX.someone") == may_hear("_INBOX.a.b") == set()


def test_an_observer_changes_nothing() -> None:
    granted = GRANTS["observer"]
    said = {subject for subject in granted.publish if subject.startswith("tb.")}

    assert said == {template.pattern("tb").text for template in READ_ONLY}
    assert may_answer("observer") == set()
    for verb in ("CREATE", "UPDATE", "DELETE", "PURGE", "MSG.DELETE", "RESTORE", "SNAPSHOT", "LEADER.STEPDOWN"):
        assert not allowed(granted.publish, f"$JS.API.STREAM.{verb}.TB_OOM")
    stored = ("$KV.tb_apps.shop", "$O.tb_models.M.x", "$JS.API.CONSUMER.CREATE.TB_OOM", "$JS.ACK.TB_OOM.c.1.1.1.1.1")
    assert not any(allowed(granted.publish, subject) for subject in stored)


def test_an_operator_has_nothing_delivered_and_makes_no_stream() -> None:
    """By a consumer or a stream of one's own commands can be read, and messages published in the server's name."""
    granted = GRANTS["operator"]
    writes = {subject for subject in granted.publish if subject.startswith(("$KV.", "$O.", "$JS.ACK.", "$JS.FC."))}

    assert writes == {"$KV.tb_apps.>"}
    for verb in ("CREATE", "UPDATE", "DELETE", "PURGE", "MSG.DELETE", "RESTORE", "SNAPSHOT", "LEADER.STEPDOWN"):
        for name in ("MINE", "TB_OOM", "KV_tb_apps"):
            assert not allowed(granted.publish, f"$JS.API.STREAM.{verb}.{name}")
    for verb in ("CREATE", "DURABLE.CREATE", "MSG.NEXT", "DELETE"):
        assert not any(
            allowed(granted.publish, f"$JS.API.CONSUMER.{verb}.{name}.c") for name in ("TB_OOM", "KV_tb_apps")
        )


def test_only_the_administrator_makes_streams_and_consumers() -> None:
    """Both reach any subject of the account that they are in."""
    names = [stream.stream_name("tb") for stream in STREAMS] + [f"KV_{each.bucket_name('tb')}" for each in BUCKETS]
    for name in names:
        for request in (
            *(f"STREAM.{verb}.{name}" for verb in ("CREATE", "UPDATE", "DELETE", "PURGE", "MSG.DELETE", "RESTORE")),
            *(f"CONSUMER.{verb}.{name}" for verb in ("CREATE", "LIST", "NAMES")),
            *(f"CONSUMER.{verb}.{name}.c" for verb in ("CREATE", "DURABLE.CREATE", "MSG.NEXT", "INFO", "DELETE")),
        ):
            assert may_publish(f"$JS.API.{request}") == {"administrator"}, request
    assert may_publish("$JS.API.STREAM.CREATE.NEW") == {"administrator"}


def test_stored_bytes_are_read_by_those_who_share_no_account_with_others() -> None:
    """A direct get is answered with stored bytes, wherever it says: other hosts, or observers, would take them."""
    for stream in STREAMS:
        readers = may_publish(f"$JS.API.DIRECT.GET.{stream.stream_name('tb')}")
        assert not readers & {user.name for user in users(*NODE_ROLES, Role.OBSERVER)}
        assert "operator" in readers


def test_only_the_administrator_changes_what_is_there() -> None:
    for verb in ("UPDATE", "DELETE", "PURGE"):
        assert may_publish(f"$JS.API.STREAM.{verb}.TB_JOB") == {"administrator"}
    assert may_publish("$KV.tb_apps.shop") == {"operator", "administrator", "kubeoperator", "scheduler"}
    assert may_publish("$KV.tb_leases.app/shop") == {"allocator", "administrator"}
    assert may_publish(f"$KV.tb_nodes.{token(NODES[0])}") == {f"agent-{NODES[0]}", "administrator"}


def test_every_message_has_someone_who_says_it_and_someone_who_hears_it() -> None:
    for channel in CHANNELS:
        subject = concrete(channel.template)
        assert may_publish(subject), subject
        assert may_hear(subject) - {"operator", "observer"} or "cli" in channel.receivers, subject
    for endpoint in ENDPOINTS:
        subject = concrete(endpoint.template)
        assert endpoint.service in may_hear(subject), subject
        assert "operator" in may_publish(subject), subject


def test_who_is_asked_may_answer() -> None:
    """Hosts, and what stands for them, at the asker's inbox; the others at what the server puts in its place."""
    for template, hearers in (
        *((channel.template, may_hear(concrete(channel.template))) for channel in CHANNELS if channel.reply),
        *((endpoint.template, {endpoint.service}) for endpoint in ENDPOINTS),
    ):
        for name in hearers:
            (role,) = {user.role for user in USERS if user.name == name}
            ordered = role in {*NODE_ROLES, Role.SLURM}
            assert ("inboxes" in may_answer(name)) == ordered, (template.text, name)
            assert ordered or may_answer(name) == {"mapped inboxes"}, (template.text, name)
            assert template not in READ_ONLY or "mapped inboxes" in may_answer(name), (template.text, name)


def test_who_is_asked_nothing_answers_nothing() -> None:
    for user in users(Role.FAST_PATH, Role.COLLECTOR, Role.OBSERVER, Role.OPERATOR, Role.ADMINISTRATOR):
        assert may_answer(user.name) == set()


def test_nobody_who_answers_may_ask_the_same() -> None:
    """Else it could send itself what names another's subject as its reply subject."""
    templates = [channel.template for channel in CHANNELS] + [each.template for each in ENDPOINTS]
    commands = {concrete(each, node) for each in templates if each.kind == "cmd" for node in NODES}
    assert len(commands) > 12

    for subject in commands:
        assert may_publish(subject) & may_hear(subject) == set(), subject


def test_a_root_of_ones_own_is_kept_to() -> None:
    for user in USERS:
        for subject in (*grants(user, "mine").publish, *grants(user, "mine").subscribe):
            assert not subject.startswith("tb.")
            assert ".tb_" not in subject.lower()


@pytest.mark.parametrize(("role", "node"), [(Role.AGENT, None), (Role.ALLOCATOR, "n1")])
def test_a_role_is_bound_to_a_node_or_not(role: Role, node: str | None) -> None:
    with pytest.raises(ValueError, match="bound to a node"):
        Identity(role, node)


def test_everything_stored_is_used_by_some_service() -> None:
    services = [uses(role) for role in Role if role not in {Role.ADMINISTRATOR, Role.OPERATOR, Role.OBSERVER}]

    assert {each for needs in services for each in needs.streams} == set(STREAMS)
    assert {each for needs in services for each in needs.buckets} == set(BUCKETS)
    assert {each for needs in services for each in needs.object_stores} == set(OBJECT_STORES)
