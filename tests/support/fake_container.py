"""One container with control files of either version that are ordinary files, opened as an agent opens it."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.agent.cgroup.host import CgroupHost
from services.agent.cgroup.open import open_host
from services.agent.ports import ContainerHandle
from services.agent.state_files import StateDirectory
from tests.support.fake_cgroupfs import CONTAINER, V1_TREE, V2_TREE, FakeKernel, fake_layout, materialise


class Bench:
    """One fake container of either version."""

    def __init__(self, base: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
        materialise(base, V1_TREE if version == 1 else V2_TREE)
        self.kernel = FakeKernel(base, monkeypatch)
        self.state = StateDirectory(base / "state")
        self.state.make()
        self.version = version
        self._hosts: list[CgroupHost] = []
        self._handles: list[ContainerHandle] = []
        # Ordinary files cannot be watched: neither by an eventfd, nor by epoll.
        monkeypatch.setattr("services._host.notifications.Notifications.watch", lambda *_: None)

    def host(self) -> CgroupHost:
        host = open_host(fake_layout(self.kernel.base, self.version), self.state)
        self._hosts.append(host)
        return host

    def handle(self) -> ContainerHandle:
        handle = self.host().open(CONTAINER)
        assert handle is not None
        self._handles.append(handle)
        return handle

    def noted(self) -> dict[str, str]:
        found = self.state.load(CONTAINER.key)
        return found.values if found else {}

    def close(self) -> None:
        for handle in self._handles:
            handle.close()
        for host in self._hosts:
            host.close()
