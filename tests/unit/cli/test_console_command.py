"""Where `turnbuckle console` listens, and what it refuses: nobody beyond this machine reads without a key."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from services._runtime.command.errors import BadFileError, CommandError, MissingFileError, UsageError
from services.console.commands import PORT, Serving, console_command, find_listening
from services.console.listening import Listening

KEY = "a-key-of-enough-length"


def run(*arguments: str) -> CommandError | SystemExit | None:
    """What the command ends with, before it connects."""
    app = typer.Typer()
    app.command()(console_command)
    result = CliRunner().invoke(app, arguments)
    assert not isinstance(result.exception, AssertionError)
    return result.exception  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ("0.0.0.0:8710", ("0.0.0.0", 8710)),
        ("[::]:0", ("::", 0)),
        ("gpu-01.example:80", ("gpu-01.example", 80)),
        ("127.0.0.1:9000", ("127.0.0.1", 9000)),
    ],
)
def test_an_address_with_a_port(listen: str, expected: tuple[str, int]) -> None:
    found = find_listening(None, listen)
    assert (found.host, found.port) == expected


@pytest.mark.parametrize(
    "listen", ["0.0.0.0", "8710", ":8710", "[::", "a:b", "a:99999", "http://a:1", "a:1/x", "x@a:1"]
)
def test_what_is_no_address_is_named(listen: str) -> None:
    with pytest.raises(UsageError, match=r"is no ADDRESS:PORT, such as 0\.0\.0\.0:8710"):
        find_listening(None, listen)


def test_a_port_is_of_the_loopback() -> None:
    assert find_listening(None, None) == Listening(port=PORT)
    assert find_listening(0, None) == Listening()
    with pytest.raises(UsageError, match="leave --port out"):
        find_listening(1, "127.0.0.1:2")


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "gpu-01", "localhost.evil.example", "")],
)
def test_what_others_reach(host: str, own: bool) -> None:
    assert Listening(host).on_loopback is own


@pytest.mark.parametrize("listen", ["0.0.0.0:8710", "[::]:8710", "gpu-01:8710", "10.0.0.1:0"])
def test_beyond_this_machine_it_wants_a_key(listen: str) -> None:
    error = run("--listen", listen)
    assert isinstance(error, UsageError)
    assert "readers need a key, name a file by --key-file" in str(error)


@pytest.mark.parametrize(
    "text", ["", "short", "a key with spaces in it, a long one", f"{KEY}\nsecond line of it", "ä" * 30]
)
def test_a_key_that_would_be_guessed_or_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "console.key"
    file.write_text(text, encoding="utf-8")
    error = run("--listen", "0.0.0.0:0", "--key-file", str(file))
    assert isinstance(error, BadFileError)
    assert "holds no key" in str(error)


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert isinstance(run("--key-file", missing), MissingFileError)
    key = tmp_path / "console.key"
    key.write_text(KEY)
    assert isinstance(run("--key-file", str(key), "--tls-cert", missing), UsageError)
    assert isinstance(run("--key-file", str(key), "--tls-cert", missing, "--tls-key", missing), MissingFileError)
    assert isinstance(run("--key-file", str(key), "--tls-cert", str(key), "--tls-key", str(key)), BadFileError)


def test_a_key_of_a_file_is_never_printed() -> None:
    assert Serving(Listening("10.0.0.1"), KEY, Path("console.key")).address(80) == "http://10.0.0.1:80/"
    assert Serving(Listening("::1"), KEY).address(80) == f"http://[::1]:80/#key={KEY}"
    assert "0.0.0.0" not in Serving(Listening("0.0.0.0"), KEY, Path("console.key")).address(80)
