"""A server that is there and does not serve us: each reason has its own sentence and exit code."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schemas.permissions import PEOPLE
from schemas.roles import Role
from schemas.subjects import CFS, Subject
from services._runtime.bus.nats import NatsBus
from services.cli.main import app
from tests.support.authority import make_ca
from tests.support.cfs_batches import batch
from tests.support.secured_nats import NODES, SecuredNats

SPEC = "name: shop\ncpu_limit: 2\nmemory_limit: 2GiB\n"
NO_PERMISSION, BAD_CONFIG = 77, 78


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SecuredNats]:
    (tmp_path / "app.yaml").write_text(SPEC)
    async with SecuredNats(tmp_path / "secrets", tls=make_ca(tmp_path / "tls", "127.0.0.1")) as made:
        await made.declare()
        yield made


async def run(environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    done = await asyncio.to_thread(CliRunner().invoke, app, [*arguments], env=environment)
    assert "no NATS server" not in done.output
    assert "Traceback" not in done.output
    return done.exit_code, done.output


async def test_an_observer_is_told_whose_key_is_needed(server: SecuredNats, tmp_path: Path) -> None:
    observer = server.environment(Role.OBSERVER)
    for arguments in (["apply", str(tmp_path / "app.yaml")], ["delete", "shop", "--yes"], ["nats", "declare"]):
        if arguments[0] == "delete":
            code, output = await run(server.environment(Role.OPERATOR), "apply", str(tmp_path / "app.yaml"))
            assert code == 0, output
        code, output = await run(observer, *arguments)

        assert code == NO_PERMISSION, output
        assert f"needs the {'administrator' if arguments[0] == 'nats' else 'operator'}'s key" in output
        assert server.seed_file(Role.OBSERVER) in output
        assert "$KV" not in output
        assert "this user" not in output


async def test_before_buckets_are_made_it_says_who_makes_them(tmp_path: Path) -> None:
    (tmp_path / "app.yaml").write_text(SPEC)
    async with SecuredNats(tmp_path / "secrets", tls=make_ca(tmp_path / "tls", "127.0.0.1")) as new:
        code, output = await run(new.environment(Role.OPERATOR), "apply", str(tmp_path / "app.yaml"))

    assert code != 0
    assert (
        "the server has no stream KV_tb_apps yet: start an allocator, or, as administrator, turnbuckle nats" in output
    )
    assert "err_code" not in output


async def test_a_services_key_is_not_for_people(server: SecuredNats) -> None:
    """Reading is for observers, too."""
    code, output = await run(server.environment(Role.AGENT, NODES[0]), "apps")

    assert code == NO_PERMISSION, output
    assert "needs an operator's or observer's key" in output


@pytest.mark.parametrize("role", PEOPLE)
async def test_people_listen_to_observations_and_events(server: SecuredNats, role: Role) -> None:
    """By default; what a person may listen to is said where he asks for too much."""
    agent, subject = await server.bus(Role.AGENT, NODES[0]), CFS.subject("tb", app="shop", node=NODES[0])
    async with publishing(agent, subject):
        code, shown, said = await tap(server, role, "--count", "1")
    await agent.close(2)
    assert (code, json.loads(shown)["subject"]) == (0, subject.text), said

    for pattern in (">", "cmd.>", "cmd.limits.*"):
        code, shown, said = await tap(server, role, pattern, "--count", "1")
        assert (code, shown) == (NO_PERMISSION, ""), said
        assert "observers may to obs.> and evt.>" in said


@asynccontextmanager
async def publishing(bus: NatsBus, subject: Subject) -> AsyncIterator[None]:
    """A batch every 20 ms."""

    async def publish() -> None:
        for tick in itertools.count():
            bus.publish(subject, batch(tick))
            await asyncio.sleep(0.02)

    task = asyncio.create_task(publish())
    yield
    task.cancel()
    await asyncio.wait({task})


async def tap(server: SecuredNats, role: Role, *arguments: str) -> tuple[int | None, str, str]:
    """The command in a process of its own: it takes signals."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.cli",
        "tap",
        *arguments,
        env=os.environ | server.environment(role),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    shown, said = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, shown.decode(), said.decode()


async def test_a_key_that_is_not_known_is_named(server: SecuredNats, tmp_path: Path) -> None:
    """By its file, not by its content; and without one that is said."""
    stranger = SecuredNats(tmp_path / "others").seed_file(Role.OPERATOR)
    known = server.environment(Role.OPERATOR)
    code, output = await run(known | {"TURNBUCKLE_NATS_NKEY_SEED_FILE": stranger}, "apps")

    assert code == NO_PERMISSION, output
    assert f"does not know the key in {stranger} (TURNBUCKLE_NATS_NKEY_SEED_FILE)" in output
    assert "password" not in output
    assert "SU" + "A" not in output  # how a user's seed begins

    code, output = await run(known | {"TURNBUCKLE_NATS_NKEY_SEED_FILE": ""}, "apps")
    assert code == NO_PERMISSION, output
    assert "none were given: set TURNBUCKLE_NATS_NKEY_SEED_FILE" in output


async def test_settings_that_cannot_work_are_78(server: SecuredNats, tmp_path: Path) -> None:
    known = server.environment(Role.OPERATOR)
    stranger = make_ca(tmp_path / "stranger", "127.0.0.1")
    for changes, sentence in (
        ({"TURNBUCKLE_NATS_NKEY_SEED_FILE": "/nowhere/x.nk"}, "/nowhere/x.nk does not exist"),
        ({"TURNBUCKLE_NATS_TLS_CA_FILE": "/nowhere/ca.pem"}, "TURNBUCKLE_NATS_TLS_CA_FILE: /nowhere/ca.pem cannot be"),
        ({"TURNBUCKLE_NATS_TLS_CA_FILE": str(tmp_path / "app.yaml")}, "app.yaml holds no certificate"),
        ({"TURNBUCKLE_NATS_TLS_CA_FILE": str(stranger / "ca.pem")}, "was not signed by the CA in"),
        ({"NATS_URL": "http://x:1"}, "cannot use http://x:1 (NATS_URL): the URL of a NATS server begins with tls://"),
        ({"NATS_URL": "tls://me:secret@"}, "it is not of the form tls://HOST:PORT"),
    ):
        code, output = await run(known | changes, "apps")

        assert (code, sentence in output, "secret@" in output) == (BAD_CONFIG, True, False), output


async def test_the_doctor_says_whether_the_connection_is_encrypted(server: SecuredNats) -> None:
    _, output = await run(server.environment(Role.OPERATOR), "doctor", "--json")

    [nats] = [finding for finding in json.loads(output) if finding["name"] == "nats"]
    assert (nats["level"], nats["found"].endswith(", encrypted")) == ("ok", True)


async def test_the_doctor_does_not_tell_to_start_another_server(server: SecuredNats, tmp_path: Path) -> None:
    stranger = make_ca(tmp_path / "stranger", "127.0.0.1")
    environment = server.environment(Role.OPERATOR) | {"TURNBUCKLE_NATS_TLS_CA_FILE": str(stranger / "ca.pem")}
    _, output = await run(environment, "doctor", "--json")

    [nats] = [finding for finding in json.loads(output) if finding["name"] == "nats"]
    assert (nats["level"], nats["mend"]) == ("failed", "")
    assert "was not signed by the CA in" in nats["found"]
