"""What the fast path's supervisor says where it has to empty the override tables itself, and cannot."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from services._host.netlink.attributes import NetlinkError
from services.fastpath import supervisor
from services.fastpath.config import Config
from services.fastpath.supervisor import Supervisor


def said_about(error: Exception, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Messages to the service where the tables' socket fails so."""

    def refuse(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(supervisor, "OverrideSocket", refuse)
    said: list[dict[str, Any]] = []
    config = cast("Config", SimpleNamespace(netns="/run/netns/away", override_tables=None))
    Supervisor(config, -1, said.append)._empty_tables()
    return said


@pytest.mark.parametrize(
    "error", [PermissionError(errno.EPERM, os.strerror(errno.EPERM)), NetlinkError("no answer within 5 s")]
)
def test_tables_that_cannot_be_emptied_are_reported(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said_about(error, monkeypatch) == [{"not_emptied": str(error)}]


def test_without_its_namespace_there_are_no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said_about(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)), monkeypatch) == []
