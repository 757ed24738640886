"""What was measured, on disk: a directory in which a finished cell is never measured twice, kill -9 or not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from services import allocator
from tests.bench.escra import profile as profiles
from tests.bench.escra.measure import Recording
from tests.bench.escra.plan import Cell, Plan
from tests.bench.escra.policies import parse
from tests.bench.escra.profile import Profile

ALLOCATOR: Final = Path(allocator.__file__ or "").parent
PEERS: Final = Path(__file__).parent / "peers"


@dataclass(frozen=True, slots=True)
class Requests:
    """The measured requests of one cell, one row each."""

    latency_s: np.ndarray[Any, np.dtype[np.float32]]
    """From the intended moment."""
    outcome: np.ndarray[Any, np.dtype[np.int8]]
    """`tests.bench.escra.load.sender.Outcome`."""
    lag_s: np.ndarray[Any, np.dtype[np.float32]]
    kind: np.ndarray[Any, np.dtype[np.int8]]
    kind_names: tuple[str, ...]


class Store:
    """Results of one plan; plans that differ in more than cells and repetitions have directories of their own."""

    def __init__(self, root: Path, plan: Plan) -> None:
        self.directory = root / plan.mark
        self.cells = self.directory / "cells"
        self.profiles = self.directory / "profiles"
        for path in (self.cells, self.profiles):
            path.mkdir(parents=True, exist_ok=True)
        for unfinished in self.directory.rglob("*.part"):
            unfinished.unlink()

    def requests_path(self, cell: Cell) -> Path:
        """Where the load client writes its rows."""
        return self.cells / f"{cell.name}.requests.npz"

    def recording_path(self, cell: Cell) -> Path:
        """Where the batches are."""
        return self.cells / f"{cell.name}.recording.npz"

    def record_path(self, cell: Cell) -> Path:
        """Written last: a cell with it is finished."""
        return self.cells / f"{cell.name}.json"

    def is_finished(self, cell: Cell) -> bool:
        """Whether it need not be measured again."""
        return self.record_path(cell).exists()

    def finish(self, cell: Cell, record: dict[str, Any]) -> None:
        """The cell is measured, with the policies' present code."""
        _write_json(self.record_path(cell), record | {"code": code_mark(cell.policy)})

    def forget_outdated(self, cells: Iterable[Cell]) -> int:
        """Let go of cells that were measured with other code of their policy; how many."""
        outdated = [
            cell for cell in cells if self.is_finished(cell) and self.record(cell).get("code") != code_mark(cell.policy)
        ]
        for cell in outdated:
            self.record_path(cell).unlink()
        return len(outdated)

    def record(self, cell: Cell) -> dict[str, Any]:
        """What `finish` wrote."""
        found: dict[str, Any] = json.loads(self.record_path(cell).read_text(encoding="utf-8"))
        return found

    def requests(self, cell: Cell, from_s: float, to_s: float) -> Requests:
        """Requests that were meant to be sent from ``from_s`` to ``to_s`` of the run."""
        with np.load(self.requests_path(cell)) as rows:
            chosen = (rows["intended_s"] >= from_s) & (rows["intended_s"] < to_s)
            columns = {name: rows[name][chosen] for name in ("latency_s", "outcome", "lag_s", "kind")}
            return Requests(**columns, kind_names=tuple(str(name) for name in rows["kind_names"]))

    def recording(self, cell: Cell) -> Recording:
        """Batches of the measured window."""
        return Recording.read(self.recording_path(cell))

    def profile_path(self, cell: Cell) -> Path:
        """Where a cell's profile is."""
        return self.profiles / f"{cell.profile_name}.json"

    def profile(self, cell: Cell) -> Profile | None:
        """The run without limits that a cell's limits come from, once it was made."""
        path = self.profile_path(cell)
        return profiles.read(path) if path.exists() else None

    def note(self, name: str, content: dict[str, Any]) -> None:
        """Something about the whole run."""
        _write_json(self.directory / f"{name}.json", content)


@cache
def code_mark(policy: str) -> str:
    """Differs where the code that decides has changed: the allocator's core; for peers, their own too."""
    spec = parse(policy)
    files = sorted(ALLOCATOR.glob("*/*.py")) if spec.limited else []
    if spec.limited and not spec.ours:
        files += sorted(PEERS.glob("*.py"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _write_json(path: Path, content: dict[str, Any]) -> None:
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")
    unfinished.replace(path)
