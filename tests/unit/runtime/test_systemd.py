"""What a service tells systemd, heard at a real socket as systemd opens it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from services._runtime.service.systemd import READY, STOPPING, Systemd


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(60.0)
        yield listening


def test_states_arrive_as_lines_of_one_message(manager: socket.socket) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": manager.getsockname()}, os.getpid())

    systemd.notify(READY, "STATUS=well")

    assert manager.recv(100) == b"READY=1\nSTATUS=well"


def test_a_status_is_one_line(manager: socket.socket) -> None:
    Systemd({"NOTIFY_SOCKET": manager.getsockname()}, 1).status("waits\nREADY=1")

    assert manager.recv(100) == b"STATUS=waits READY=1"


def test_an_abstract_socket_is_reached() -> None:
    name = f"turnbuckle-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(60.0)
        Systemd({"NOTIFY_SOCKET": f"@{name}"}, 1).notify(STOPPING)

        assert listening.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize(
    ("environ", "beats"),
    [
        ({}, 0),
        ({"WATCHDOG_USEC": "0"}, 0),
        ({"WATCHDOG_USEC": "5000000"}, 1),
        ({"WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "7"}, 1),
        ({"WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "8"}, 0),
    ],
)
def test_signs_of_life_only_where_they_are_waited_for(
    environ: dict[str, str], beats: int, manager: socket.socket
) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": manager.getsockname(), **environ}, 7)

    systemd.notify_watchdog()
    systemd.notify("END=1")

    heard = [manager.recv(100) for _ in range(beats + 1)]
    assert heard == [b"WATCHDOG=1"] * beats + [b"END=1"]


@pytest.mark.parametrize("address", ["", "/nonexistent/notify", "vsock:2:1234", "@" + "x" * 200])
def test_whoever_is_not_there_does_no_harm(address: str) -> None:
    Systemd({"NOTIFY_SOCKET": address}, 1).notify(READY)


def test_children_cannot_speak_for_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.setenv(variable, "1")

    Systemd.from_environment()

    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & os.environ.keys()
