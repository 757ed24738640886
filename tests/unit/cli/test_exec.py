"""`turnbuckle exec` before and after its command: what it says about the application, and about a kill."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from services._host.cgroupfs import CgroupLayout, ControllerMount, ManagedCgroup
from services._runtime.bus.api import CredentialsRefusedError
from services._runtime.bus.nats import NatsBus
from services._runtime.command.connection import find_server
from services._runtime.command.errors import UsageError
from services.cli.apps.announced import unmanaged_note, unmanaged_sentence
from services.cli.apps.managed_process import ManagedCommand, killed_sentence, make_group
from services.cli.main import app
from services.cli.toolkit.supervisor import free_port


@pytest.mark.parametrize("text", ["2KB", "0", "4095k"])
def test_memory_in_which_nothing_starts_is_refused_before_the_start(text: str) -> None:
    done = CliRunner().invoke(
        app, ["exec", "--app", "shop", "--name", "web", "--memory", text, "--", "true"], env={"COLUMNS": "200"}
    )

    assert done.exit_code == 2
    assert "a container has at least 4 MiB" in done.stderr


def test_a_name_that_cannot_be_used_is_a_wrong_command_line(tmp_path: Path) -> None:
    mount = ControllerMount(str(tmp_path), "/", read_only=False)
    layout = CgroupLayout(2, hybrid=False, mounts={"memory": mount})

    with pytest.raises(UsageError, match="'a b' does not match") as refusal:
        make_group(layout, ManagedCommand("a b", "web", ("true",)))

    assert refusal.value.exit_code == 2


def test_an_application_that_nobody_announced_is_told_with_what_was_meant() -> None:
    said = unmanaged_sentence("shpo", {"shop", "batch"})

    assert said.startswith("application 'shpo' is not announced (did you mean 'shop'?): the process runs unmanaged")
    assert "turnbuckle apply" in said


def test_no_bus_is_told_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    said = unmanaged_note("shop", find_server(f"nats://127.0.0.1:{free_port()}", None))

    assert str(said).startswith("whether application 'shop' is announced is not known: ")


def test_a_refused_key_is_told_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command needs no bus: whoever starts a process on a host may have no key."""

    async def refuse(*_: object, **__: object) -> NatsBus:
        raise CredentialsRefusedError("the NATS server at tls://bus:4222 refuses the credentials")

    monkeypatch.setattr(NatsBus, "connect", refuse)
    said = unmanaged_note("shop", find_server("tls://bus:4222", None))

    assert str(said).startswith(
        "whether application 'shop' is announced is not known: the NATS server at tls://bus:4222 "
    )


@pytest.mark.parametrize(
    ("version", "file", "text"),
    [
        (1, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        (2, "memory.events", "low 0\nhigh 9\nmax 4\noom 1\noom_kill 3\noom_group_kill 0\n"),
    ],
)
def test_a_kill_of_the_kernel_is_explained(tmp_path: Path, version: int, file: str, text: str) -> None:
    mount = ControllerMount(str(tmp_path), "/", read_only=False)
    layout = CgroupLayout(version, hybrid=False, mounts={"memory": mount})
    (tmp_path / "g").mkdir()
    assert ManagedCgroup(layout, "g").oom_kills() == 0, "a kernel that does not tell"
    (tmp_path / "g" / file).write_text(text)

    assert ManagedCgroup(layout, "g").oom_kills() == 3
    assert killed_sentence("shop", 3).startswith("the kernel killed it at its memory limit (3 in its group)")
