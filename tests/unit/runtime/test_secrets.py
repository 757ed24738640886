"""No password, token or seed is shown: in settings, options, errors, logs, or by the doctor."""

from __future__ import annotations

import dataclasses
import io
import logging
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from services._runtime.bus.api import BusError
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_connection import inbox_prefix, public_key
from services._runtime.service.settings import CommonSettings
from services._runtime.settings_error import SettingsError
from services._runtime.telemetry.logging import get_logger, setup_logging
from services.cli.main import app
from services.cli.nats.keys import Keys

SECRETS = ("hunter2-url", "hunter2-password", "hunter2-token")


class DemoSettings(CommonSettings):
    service: ClassVar[str] = "demo"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    for name in ("password", "token"):
        (tmp_path / name).write_text(f"hunter2-{name}\n")
    keys = Keys(tmp_path / "secrets")
    keys.public_key("demo")
    return {
        "TURNBUCKLE_NATS_URL": "nats://me:hunter2-url@127.0.0.1:1,nats://me:hunter2-url@127.0.0.1:2",
        "TURNBUCKLE_NATS_PASSWORD_FILE": str(tmp_path / "password"),
        "TURNBUCKLE_NATS_TOKEN_FILE": str(tmp_path / "token"),
        "TURNBUCKLE_NATS_NKEY_SEED_FILE": str(keys.path("demo")),
    }


def shown(text: str, environ: dict[str, str]) -> list[str]:
    seed = Path(environ["TURNBUCKLE_NATS_NKEY_SEED_FILE"]).read_text().strip()
    return [secret for secret in (*SECRETS, seed) if secret in text]


def test_settings_and_options_show_none(environ: dict[str, str]) -> None:
    settings = DemoSettings.load(environ)
    options = settings.bus_options(environ)

    assert options.password == "hunter2-password"
    assert options.servers[0] == "nats://me:hunter2-url@127.0.0.1:1"
    for text in (repr(settings), str(settings), settings.print_config(), repr(options), str(options), options.address):
        assert shown(text, environ) == []
    assert "127.0.0.1:2" in settings.print_config()


def test_errors_show_none(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        DemoSettings.load(environ | {"TURNBUCKLE_NATS_PASSWORD": "hunter2-password", "TURNBUCKLE_HEALTH_PORT": "x"})
    assert shown(str(caught.value), environ) == []
    spoiled = tmp_path / "spoiled.nk"
    spoiled.write_text(Path(environ["TURNBUCKLE_NATS_NKEY_SEED_FILE"]).read_text()[:40])
    with pytest.raises(BusError) as refused:
        public_key(str(spoiled))
    assert spoiled.read_text() not in str(refused.value)
    assert refused.value.__cause__ is None


async def test_logs_show_none(environ: dict[str, str]) -> None:
    stream = io.StringIO()
    setup_logging("demo", level="debug", log_format="json", stream=stream)
    logging.getLogger("nats").setLevel(logging.DEBUG)
    options = DemoSettings.load(environ, nats_url="nats://me:hunter2-url@127.0.0.1:1").bus_options(environ)

    get_logger("demo").info("settings", options=options, settings=DemoSettings.load(environ))
    try:
        await NatsBus.connect(dataclasses.replace(options, connect_deadline_s=0.5))
    except BusError:
        get_logger("demo").exception("failed")

    assert "failed" in stream.getvalue()
    assert "Connect call failed" in stream.getvalue()
    assert shown(stream.getvalue(), environ) == []


def test_the_doctor_shows_none(environ: dict[str, str]) -> None:
    done = CliRunner().invoke(app, ["doctor", "--json"], env=environ)

    assert "no NATS server at nats://127.0.0.1:1" in done.output
    assert shown(done.output, environ) == []


@pytest.mark.parametrize(
    ("variables", "prefix"),
    [
        ({}, "_INBOX"),
        ({"TURNBUCKLE_NATS_USER": "a.b"}, "_INBOX.a/b"),
        ({"TURNBUCKLE_NATS_URL": "nats://me:pw@h:1"}, "_INBOX.me"),
        ({"TURNBUCKLE_NATS_URL": "nats://a-token@h:1"}, "_INBOX"),
    ],
    ids=["none", "user", "url", "token"],
)
def test_the_inbox_is_the_users_own_and_tells_no_secret(variables: dict[str, str], prefix: str) -> None:
    assert inbox_prefix(DemoSettings.load(variables).bus_options({})) == prefix


def test_the_inbox_of_a_key_is_its_public_key(environ: dict[str, str]) -> None:
    prefix = inbox_prefix(DemoSettings.load(environ).bus_options({}))

    assert prefix == f"_INBOX.{public_key(environ['TURNBUCKLE_NATS_NKEY_SEED_FILE'])}"
    assert prefix.startswith("_INBOX.U")
