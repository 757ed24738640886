"""Containers that are found as their control groups are made; a real engine is in tests/system."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from services._host.moved_files import NewEntries
from services.agent.discovery.starting import BUNDLES, StartingContainers, groups_of
from tests.support.fake_cgroupfs import fake_layout

ID, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def layout(tmp_path: Path):
    return fake_layout(tmp_path / "cgroup", 1)


class Lab:
    """A directory of bundles, and a thread that follows it."""

    def __init__(self, base: Path, layout) -> None:
        self.bundles = base / "state" / BUNDLES
        self.bundles.mkdir(parents=True)
        self.layout = layout
        self.reports: list[str] = []
        self.reported, self.stopped = threading.Event(), threading.Event()
        self.unknown: set[str] = set()
        follow = StartingContainers(layout, (str(base / "state"),)).follow
        arguments = (self.stopped, lambda each: None if each in self.unknown else each, self.started)
        self._thread = threading.Thread(target=follow, args=arguments, daemon=True)
        self._thread.start()

    def started(self, container_id: str, groups: dict[str, str]) -> None:
        assert all(Path(group).is_dir() for group in groups.values())
        self.reports.append(container_id)
        self.reported.set()

    def bundle(self, container_id: str, **resources: dict[str, int]) -> None:
        directory = self.bundles / container_id
        directory.mkdir()
        config = {"linux": {"cgroupsPath": f"/docker/{container_id}", "resources": resources}}
        (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")

    def end(self, container_id: str) -> None:
        directory = self.bundles / container_id
        (directory / "config.json").unlink()
        directory.rename(self.bundles.parent / "ended")  # its inode stays in use, so that the next one has another

    def wait_for(self, container_id: str) -> None:
        while container_id not in self.reports:
            self.reported.clear()
            if container_id not in self.reports:
                assert self.reported.wait(60)

    def groups(self, container_id: str) -> None:
        for directory in self.layout.directories(f"docker/{container_id}").values():
            Path(directory).mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        self.stopped.set()
        self._thread.join(60)


@pytest.fixture
def lab(tmp_path: Path, layout):
    lab = Lab(tmp_path, layout)
    yield lab
    lab.close()


def test_a_container_is_reported_as_its_groups_appear_and_others_are_not(lab: Lab) -> None:
    lab.unknown.add(OTHER)
    for container_id in (OTHER, ID):
        lab.bundle(container_id)
    lab.groups(OTHER)
    assert not lab.reported.wait(0.05)
    lab.groups(ID)
    assert lab.reported.wait(60)
    assert lab.reports == [ID]


@pytest.mark.parametrize("again", [False, True], ids=["one", "one and another of the same name"])
def test_one_that_comes_while_its_directory_begins_to_be_watched_is_reported_once(
    tmp_path: Path, layout, monkeypatch: pytest.MonkeyPatch, again
) -> None:
    """It is listed, and inotify notifies of it; that its name comes again later is another start."""
    watch, watching, listing = NewEntries.watch, threading.Event(), threading.Event()

    def watched(entries: NewEntries, directory: str) -> None:
        watch(entries, directory)
        watching.set()
        listing.wait(60)

    monkeypatch.setattr(NewEntries, "watch", watched)
    lab = Lab(tmp_path, layout)
    try:
        assert watching.wait(60)
        lab.bundle(ID)
        lab.groups(ID)
        listing.set()
        assert lab.reported.wait(60)
        if again:
            lab.end(ID)
            lab.bundle(ID)
        lab.bundle(OTHER)
        lab.groups(OTHER)
        lab.wait_for(OTHER)
    finally:
        lab.close()
    assert lab.reports == [ID, *([ID] if again else []), OTHER]


@pytest.mark.parametrize("resources", [{"memory": {"limit": 1 << 26}}, {"cpu": {"quota": 50_000}}])
def test_one_that_its_engine_limits_is_left_to_the_engine_s_listing(lab: Lab, resources) -> None:
    """The runtime writes those limits into its groups meanwhile."""
    lab.bundle(ID, **resources)
    lab.groups(ID)
    lab.bundle(OTHER)
    lab.groups(OTHER)
    assert lab.reported.wait(60)
    assert lab.reports == [OTHER]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/docker/x", "docker/x"),
        ("system.slice:docker:x", "system.slice/docker-x.scope"),
        (":docker:x", "system.slice/docker-x.scope"),
        ("a-b.slice:docker:x", "a.slice/a-b.slice/docker-x.scope"),
        ("", None),
        (None, None),
    ],
)
def test_the_groups_that_a_bundle_names(layout, path, expected) -> None:
    named = groups_of(layout, {"linux": {"cgroupsPath": path}})
    assert named == (None if expected is None else layout.directories(expected))


def test_names_of_new_entries_come_with_their_directory(tmp_path: Path) -> None:
    with NewEntries() as entries:
        entries.watch(str(tmp_path))
        assert list(entries.take(0)) == []
        for name in ("one", "a name of more than sixteen characters"):
            (tmp_path / name).mkdir()
        assert list(entries.take(60)) == [
            (str(tmp_path), "one"),
            (str(tmp_path), "a name of more than sixteen characters"),
        ]
