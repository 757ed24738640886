"""What listings of the Docker Engine are made into. The real engine is in tests/kernel."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading

import pytest

from schemas.containers import ContainerSource
from services._host import docker_engine
from services.agent.discovery import docker
from services.agent.discovery.docker import (
    ContainerTable,
    DockerDiscovery,
    Listed,
    labelled_containers,
)
from services.agent.discovery.labels import refuse_names
from services.agent.ports import FoundContainer, GoneContainer, RejectedContainer, SourceAnswered
from tests.support.deadline import until

ID, OTHER = "a" * 64, "b" * 64
WEB = Listed(ID, "shop", "web")


def row(**changes):
    return {"Id": ID, "Names": ["/web"], "Labels": {"turnbuckle.app": "shop"}, "State": "running"} | changes


def test_the_container_name_is_the_default_name():
    assert labelled_containers([row()]) == [WEB]


def test_the_label_names_it():
    labels = {"turnbuckle.app": "shop", "turnbuckle.name": "front"}
    assert labelled_containers([row(Labels=labels)]) == [Listed(ID, "shop", "front")]


def test_aliases_of_links_are_not_its_name():
    assert labelled_containers([row(Names=["/other/alias", "/web"])]) == [WEB]


@pytest.mark.parametrize(
    "changes",
    [{"Labels": {}}, {"Labels": None}, {"Labels": {"turnbuckle.name": "x"}}, {"State": "restarting"}],
)
def test_unlabelled_and_restarting_ones_are_left_out(changes):
    assert labelled_containers([row(**changes)]) == []


def test_paused_ones_stay():
    assert labelled_containers([row(State="paused")]) == [WEB]


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        (Listed(ID, "shop a", "web"), r"label turnbuckle\.app='shop a' does not match"),
        (Listed(ID, "", "web"), r"label turnbuckle\.app='' does not match"),
        (Listed(ID, "shop\n", "web"), r"label turnbuckle\.app='shop\\n' does not match"),
        (Listed(ID, "*" * 5000, "web"), r"label turnbuckle\.app='\*{200}' does not match"),
        (Listed(ID, "shop", "w" * 64), r"name 'w{64}' does not match .* set the label turnbuckle\.name"),
        (Listed(ID, "shop", ""), "name '' does not match"),
    ],
)
def test_labels_that_cannot_be_used(listed, reason):
    refusal = refuse_names(listed.app, listed.name)
    assert refusal is not None
    assert re.match(reason, refusal)


@pytest.fixture
def proc(tmp_path):
    """A /proc in which processes can be started and ended."""

    class Proc:
        directory = str(tmp_path)

        def start(self, pid: int) -> int:
            (tmp_path / str(pid)).mkdir()
            return pid

        def end(self, pid: int) -> None:
            (tmp_path / str(pid)).rmdir()

    return Proc()


def found(pid):
    return FoundContainer(ID, "shop", "web", ContainerSource.DOCKER, pid=pid)


def test_found_once_inspected_once_gone_once(proc):
    table = ContainerTable(proc.directory)
    inspected = []

    def inspect(container_id):
        inspected.append(container_id)
        return proc.start(17)

    assert table.update([WEB], inspect) == [found(17)]
    assert table.update([WEB], inspect) == []
    assert table.update([], inspect) == [GoneContainer(ID)]
    assert table.update([], inspect) == []
    assert inspected == [ID]


def test_a_restart_between_two_listings_is_noticed(proc):
    table = ContainerTable(proc.directory)
    table.update([WEB], lambda _: proc.start(17))
    proc.end(17)
    assert table.update([WEB], lambda _: proc.start(18)) == [GoneContainer(ID), found(18)]


def test_one_that_starts_is_found_by_its_groups_and_not_gone_by_a_listing_from_before(proc):
    table, groups = ContainerTable(proc.directory), {"memory": "/there"}
    table.update([WEB], lambda _: proc.start(17))
    proc.end(17)
    report = table.starting(WEB, groups)
    assert (report.key, report.directories, report.pid) == (found(18).key, groups, None)
    assert table.update([], lambda _: 0) == []
    assert table.update([WEB], lambda _: proc.start(18)) == [found(18)]


def test_an_exit_between_listing_and_inspection_is_not_found(proc):
    table = ContainerTable(proc.directory)
    assert table.update([WEB], lambda _: 0) == []
    table.update([WEB], lambda _: proc.start(17))
    proc.end(17)
    assert table.update([WEB], lambda _: 0) == [GoneContainer(ID)]


def test_processes_that_cannot_be_seen_are_not_reported_again(proc):
    """An agent without the host's process namespace sees no /proc/<pid>, but the same pid each time."""
    table = ContainerTable(proc.directory)
    assert table.update([WEB], lambda _: 17) == [found(17)]
    assert table.update([WEB], lambda _: 17) == []


def test_rejected_once(proc):
    table = ContainerTable(proc.directory)
    bad = Listed(OTHER, "shop a", "web")
    [report] = table.update([bad], lambda _: pytest.fail("must not be inspected"))
    assert isinstance(report, RejectedContainer)
    assert (report.container_id, report.app) == (OTHER, "shop a")
    assert table.update([bad], lambda _: 1) == []
    assert table.update([], lambda _: 1) == []
    assert len(table.update([bad], lambda _: 1)) == 1


async def test_without_an_engine_it_waits_unavailable_and_ends_quickly(tmp_path, monkeypatch):
    """Its end waits for no pause of its threads: here they would last ten minutes, and so would its patience."""
    for name in ("FIRST_RETRY_S", "LAST_RETRY_S"):
        monkeypatch.setattr(docker_engine, name, 600.0)
        monkeypatch.setattr(docker, name, 600.0)
    monkeypatch.setattr(docker, "STOP_GRACE_S", 600.0)
    discovery = DockerDiscovery(f"unix://{tmp_path}/absent.sock")
    reports = []
    task = asyncio.create_task(discovery.run(reports.append))
    await until(lambda: sum(thread.name.startswith("docker-") for thread in threading.enumerate()) == 2)
    assert not discovery.available
    await until(lambda: reports[:1] == [SourceAnswered(ContainerSource.DOCKER, exists=False)])
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.timeout(60):
            await task
    await until(lambda: not any(thread.name.startswith("docker-") for thread in threading.enumerate()))
