"""An agent without the package of a source of containers says what to install, and how to do without."""

from __future__ import annotations

import sys

import pytest

from services._host.cgroupfs import CgroupLayout
from services._runtime.settings_error import UnusableSettingsError
from services.agent import backend
from services.agent.settings import AgentSettings


def test_without_the_docker_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    monkeypatch.delitem(sys.modules, "services.agent.discovery.docker", raising=False)

    with pytest.raises(UnusableSettingsError) as refused:
        backend._docker(AgentSettings.load({}, node="n1"), CgroupLayout(1, hybrid=False, mounts={}))

    assert str(refused.value).startswith("docker is not installed: pip install docker, or all of the extra: ")
    assert str(refused.value).endswith("; or set TURNBUCKLE_AGENT__DOCKER=off")
