"""What a host offers: slots, an address, and the user that workers run as."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from services._runtime.settings_error import UnusableSettingsError
from services.runner.host import node_address, node_slots, worker_user
from services.runner.settings import RunnerSettings


def settings(**changes: object) -> RunnerSettings:
    return RunnerSettings.load({}, **changes)


def test_slots_are_gpus_where_there_are_any(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()

    found = node_slots(settings(), tmp_path)
    assert (found.slots, found.gpus) == (2, 2)


def test_slots_are_cores_where_there_is_no_gpu(tmp_path: Path) -> None:
    found = node_slots(settings(), tmp_path)

    assert (found.slots, found.gpus, found.cores) == (os.cpu_count(), 0, os.cpu_count())
    assert 0 < found.memory_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_an_emulated_node_has_a_share_of_this_host(tmp_path: Path) -> None:
    found = node_slots(settings(slots=2, cores=0.5, memory_bytes="1GiB"), tmp_path)

    assert (found.slots, found.share_cores(1), found.share_memory(1)) == (2, 0.25, 512 << 20)


def test_the_address_is_the_one_that_nats_sees() -> None:
    assert node_address(settings(), "nats://127.0.0.1:4222") == "127.0.0.1"
    assert node_address(settings(), "127.0.0.1:4222") == "127.0.0.1"
    assert node_address(settings(), "nats://no-such-host.invalid:4222") == "127.0.0.1"
    assert node_address(settings(address="10.1.2.3"), "nats://127.0.0.1:4222") == "10.1.2.3"


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr("services.runner.host.os.geteuid", lambda: 0)
    monkeypatch.delenv("SUDO_USER", raising=False)
    return monkeypatch


def test_root_runs_workers_as_nobody(as_root: pytest.MonkeyPatch) -> None:
    user = worker_user(None)

    assert user is not None
    assert (user.name, user.uid) == ("nobody", pwd.getpwnam("nobody").pw_uid)


@pytest.mark.parametrize(("behind", "name"), [("daemon", "daemon"), ("root", "nobody"), ("", "nobody")])
def test_or_as_the_user_behind_sudo_but_not_as_root(as_root: pytest.MonkeyPatch, behind: str, name: str) -> None:
    as_root.setenv("SUDO_USER", behind)
    user = worker_user(None)

    assert user is not None
    assert user.name == name


def test_as_root_only_where_that_is_said(as_root: pytest.MonkeyPatch) -> None:
    user = worker_user("root")

    assert user is not None
    assert user.uid == 0


def test_a_user_that_is_not_there_is_a_wrong_setting(as_root: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnusableSettingsError, match="workers cannot run as no-such-user: there is no such user"):
        worker_user("no-such-user")


def test_without_root_workers_run_as_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    uid = pwd.getpwnam("nobody").pw_uid
    monkeypatch.setattr("services.runner.host.os.geteuid", lambda: uid)

    assert worker_user(None) is None
    assert worker_user("nobody") is None
    with pytest.raises(UnusableSettingsError, match="the runner is not root, so workers run as nobody"):
        worker_user("root")
