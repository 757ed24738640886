"""Scanning managed directories, on ordinary files. Removal is shown on real groups in tests/kernel."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path

import pytest

from schemas.containers import ContainerSource
from services.agent.discovery.managed import CHECK_TURNS, EMPTY_S, ManagedDiscovery
from services.agent.ports import FoundContainer, GoneContainer, RejectedContainer, SourceAnswered
from tests.support.deadline import until
from tests.support.fake_cgroupfs import fake_layout

WEB = "turnbuckle/shop/web-0123456789ab"
FOUND_WEB = FoundContainer("0123456789ab", "shop", "web", ContainerSource.EXEC, managed_directory=WEB)


class Groups:
    """Directories with a cgroup.procs, as a version 2 mount shows them."""

    def __init__(self, base: Path) -> None:
        self.layout = fake_layout(base, 2)
        self.top = base / "unified"
        self.now_s = 0.0
        self.discovery = ManagedDiscovery(self.layout, clock=lambda: self.now_s)

    def make(self, directory: str, processes: str = "17\n") -> None:
        (self.top / directory).mkdir(parents=True, exist_ok=True)
        (self.top / directory / "cgroup.procs").write_text(processes)

    def remove(self, directory: str) -> None:
        shutil.rmtree(self.top / directory)


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    return Groups(tmp_path)


def test_no_managed_root_is_nothing(groups):
    assert groups.discovery.scan() == []


def test_found_once_and_gone_once(groups):
    groups.make(WEB)
    assert groups.discovery.scan() == [FOUND_WEB]
    assert groups.discovery.scan() == []
    groups.remove(WEB)
    assert groups.discovery.scan() == [GoneContainer("0123456789ab")]
    assert groups.discovery.scan() == []


def test_a_group_is_reported_when_its_first_process_is_in(groups):
    groups.make(WEB, "")
    assert groups.discovery.scan() == []
    groups.make(WEB)
    assert groups.discovery.scan() == [FOUND_WEB]


def test_other_directories_are_rejected_once_with_the_reason(groups):
    groups.make("turnbuckle/shop/odd name")
    [report] = groups.discovery.scan()
    assert isinstance(report, RejectedContainer)
    assert (report.app, report.name, report.source) == ("shop", "odd name", ContainerSource.EXEC)
    assert "turnbuckle/shop/odd name is not <application>/<name>" in report.reason
    assert groups.discovery.scan() == []
    groups.remove("turnbuckle/shop/odd name")
    groups.discovery.scan()
    groups.make("turnbuckle/shop/odd name")
    assert len(groups.discovery.scan()) == 1


def test_files_beside_the_directories_are_ignored(groups):
    groups.make(WEB)
    (groups.top / "turnbuckle/shop/cpu.max").write_text("max 100000\n")
    (groups.top / "turnbuckle/cgroup.procs").write_text("")
    assert groups.discovery.scan() == [FOUND_WEB]


def test_an_empty_group_stays_for_two_seconds_and_a_new_process_keeps_it(groups, monkeypatch):
    removed = []
    monkeypatch.setattr(
        "services.agent.discovery.managed.ManagedCgroup.remove", lambda group: not removed.append(group.directory)
    )
    groups.make(WEB)
    groups.discovery.scan()
    groups.make(WEB, "")
    for _ in range(CHECK_TURNS):
        groups.discovery.scan()
    groups.now_s += EMPTY_S - 0.1
    assert groups.discovery.scan() == []
    groups.make(WEB)
    assert groups.discovery.scan() == []
    groups.make(WEB, "")
    for _ in range(CHECK_TURNS):
        groups.discovery.scan()
    groups.now_s += EMPTY_S - 0.1
    assert groups.discovery.scan() == []
    assert removed == []
    groups.now_s += 0.2
    assert groups.discovery.scan() == [GoneContainer("0123456789ab")]
    assert removed == [WEB]


async def test_run_reports_changes_until_cancelled(tmp_path):
    groups = Groups(tmp_path)
    discovery = ManagedDiscovery(groups.layout, interval_s=0.005)
    reports = []
    task = asyncio.create_task(discovery.run(reports.append))
    groups.make(WEB)
    await until(lambda: reports == [FOUND_WEB, SourceAnswered(ContainerSource.EXEC)])
    groups.remove(WEB)
    await until(lambda: reports[2:] == [GoneContainer("0123456789ab")])
    assert discovery.available
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
