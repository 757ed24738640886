"""The sockets that trainings report at, where one cannot be made."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schemas.message import Message
from services._runtime.telemetry.logging import get_logger
from services.runner.training_sockets import TrainingSockets
from services.runner.wakeups import WakeUps
from services.runner.worker import Worker, WorkerKey
from services.runner.worker_files import WorkerFiles


def test_a_socket_that_cannot_be_given_to_its_user_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    class Noted(socket.socket):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)  # else the garbage collector would close what nobody has closed

    def refuse(*_: object, **_options: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(socket, "socket", Noted)
    monkeypatch.setattr(os, "chown", refuse)
    intent = SimpleNamespace(user=["somebody", 7, 7, "/"])
    worker = SimpleNamespace(key=WorkerKey("try", 1, 0), files=WorkerFiles(tmp_path), intent=intent)
    said: list[Message] = []
    sockets = TrainingSockets("n1", said.append, get_logger("test"), wakeups := WakeUps())
    sockets.poll([cast("Worker", worker)])

    assert [each.fileno() for each in made] == [-1]
    assert said == []
    sockets.close()
    wakeups.close()
