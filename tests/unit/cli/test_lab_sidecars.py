"""Services beside the lab's FRR: a lab is not ready before they are at work, or its first fault meets FRR alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from services._runtime.command.errors import UnavailableError
from services.fabric.testbed import processes, sidecars, state_file
from services.fabric.testbed.state_file import LabState
from services.fabric.testbed.topology import DualTor, LabSettings

SETTINGS = LabSettings(prefix="tbunit", fast_path=True)
LOOKS = 3


class Rules:
    """In place of `LabNetlink`: the fast path's rule is there from a namespace's third look on, or never."""

    looks: dict[str, int]
    needed: float = LOOKS

    def __init__(self, netns: str) -> None:
        self._netns = netns

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def rule_protocols(self) -> frozenset[int]:
        self.looks[self._netns] = self.looks.get(self._netns, 0) + 1
        return frozenset({2, 200} if self.looks[self._netns] >= self.needed else {2})


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LabState]:
    def spawn(sidecar: sidecars._Sidecar) -> int:
        sidecar.log.parent.mkdir(parents=True, exist_ok=True)
        sidecar.log.write_text("still reading its settings", encoding="utf-8")
        return os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)

    monkeypatch.setattr(state_file, "DIRECTORY", tmp_path)
    monkeypatch.setattr(sidecars, "_spawn", spawn)
    monkeypatch.setattr(sidecars, "_EARLY_EXIT_S", 0.0)
    monkeypatch.setattr(sidecars, "LabNetlink", Rules)
    monkeypatch.setattr(Rules, "looks", {}, raising=False)
    made = LabState(settings=SETTINGS)
    state_file.save(made)
    yield made
    processes.end(made.processes)


def test_a_lab_waits_for_its_fast_paths(held: LabState) -> None:
    told: list[str] = []
    sidecars.start(DualTor.of(SETTINGS), held, told.append)
    assert list(Rules.looks.values()) == [LOOKS, LOOKS]
    assert told == ["fast path of h1, fast path of h2 run"]


def test_a_fast_path_that_does_not_get_to_work_is_named_with_what_it_said(
    held: LabState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rules, "needed", float("inf"))
    monkeypatch.setattr(sidecars, "_READY_TIMEOUT_S", 0.1)
    with pytest.raises(UnavailableError, match=r"fast path of h1 is not at work after 0 s:\nstill reading"):
        sidecars.start(DualTor.of(SETTINGS), held, lambda _: None)
