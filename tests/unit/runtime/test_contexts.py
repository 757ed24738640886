"""NATS contexts as the `nats` command keeps them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services._runtime.bus.nats_contexts import ContextError, context_names, resolve, selected_context
from services._runtime.bus.options import DEFAULT_URL, without_credentials


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    directory = tmp_path / "nats" / "context"
    directory.mkdir(parents=True)
    lab = {"description": "x", "url": "nats://lab:4222, nats://lab2:4222", "user": "u", "password": "p", "ca": "/ca"}
    (directory / "lab.json").write_text(json.dumps(lab))
    (directory / "empty.json").write_text("{}")
    (directory / "broken.json").write_text("{")
    (directory / "list.json").write_text("[]")
    (directory / "number.json").write_text('{"url": 7}')
    (directory / "nsc.json").write_text('{"nsc": "nsc://operator/account/user"}')
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def select(environ: dict[str, str], name: str) -> None:
    (Path(environ["XDG_CONFIG_HOME"]) / "nats" / "context.txt").write_text(f"{name}\n")


def test_default(environ: dict[str, str]) -> None:
    options = resolve(environ=environ)

    assert (options.servers, options.origin) == ((DEFAULT_URL,), "the default")


def test_context_by_name(environ: dict[str, str]) -> None:
    """All fields that matter are taken over."""
    options = resolve(context="lab", environ=environ)

    assert options.servers == ("nats://lab:4222", "nats://lab2:4222")
    assert (options.user, options.password, options.tls_ca_file) == ("u", "p", "/ca")
    assert options.origin == "context lab"
    assert "p'" not in repr(options).replace("name=", "")


def test_a_context_may_want_the_handshake_first(environ: dict[str, str]) -> None:
    (Path(environ["XDG_CONFIG_HOME"]) / "nats" / "context" / "first.json").write_text('{"tls_first": true}')

    assert resolve(context="first", environ=environ).tls_first is True
    assert resolve(context="lab", environ=environ).tls_first is None


def test_order_of_precedence(environ: dict[str, str]) -> None:
    """Option before variable, URL before context, selection before default."""
    select(environ, "lab")
    variables = {"NATS_URL": "nats://env:1", "NATS_CONTEXT": "empty"}

    assert resolve("nats://opt:1", environ=environ | variables).servers == ("nats://opt:1",)
    assert resolve(context="lab", environ=environ | variables).origin == "context lab"
    assert resolve(environ=environ | variables).origin == "NATS_URL"
    assert resolve(environ=environ | {"NATS_CONTEXT": "empty"}).origin == "context empty"
    assert resolve(environ=environ).origin == "context lab"


def test_url_beside_a_context_keeps_its_credentials(environ: dict[str, str]) -> None:
    """But credentials of the selected context are not sent to a URL that was given alone."""
    select(environ, "lab")

    assert resolve("nats://x:1", "lab", environ=environ).user == "u"
    assert resolve("nats://x:1", environ=environ).user is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lap", "did you mean 'lab'"),
        ("broken", "cannot be read"),
        ("list", "no JSON object"),
        ("number", "url is no text"),
        ("nsc", "nsc"),
        ("../context/lab", "no NATS context"),
    ],
)
def test_unusable_contexts(environ: dict[str, str], name: str, text: str) -> None:
    with pytest.raises(ContextError, match=text):
        resolve(context=name, environ=environ)


def test_listing(environ: dict[str, str]) -> None:
    assert context_names(environ)[0] == "broken"
    assert selected_context(environ) is None
    select(environ, "lab")
    assert selected_context(environ) == "lab"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://u:p@h:1", "nats://h:1"),
        ("h:1", "nats://h:1"),
        ("u:p@h", "nats://h"),
        ("nats://[bad", "nats://[bad"),
    ],
)
def test_credentials_are_not_shown(url: str, shown: str) -> None:
    assert without_credentials(url) == shown
