"""A runner in the test's own process, with control groups, that measures and paces jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from schemas.scheduling import IterationSample, OrderAction, Pace, WorkOrder
from schemas.subjects import ITERATIONS
from services._host.cgroupfs import ManagedCgroup, detect
from services._runtime.bus.api import Delivery
from services.runner.worker_files import Intent, Pause
from tests.support.deadline import until
from tests.support.runner_lab import RunnerLab

ROOT: Final = f"turnbuckle-pacing-test-{os.getpid()}"
MIB: Final = 1 << 20


class PacedLab(RunnerLab):
    """One node."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        given = {"control_groups": "auto", "managed_root": ROOT, "cores": 2.0, "memory_bytes": 4096 * MIB}
        given["mltcp"] = "off"  # iterations are measured from counters
        super().__init__(directory, **(given | settings))
        self.samples: list[IterationSample] = []
        """Of each iteration the first."""
        self.due: list[IterationSample] = []
        """Those that say when the next iteration is due."""

    async def listen(self) -> None:
        """Collect events and iterations from now on."""
        await super().listen()

        def take(delivery: Delivery) -> None:
            sample = delivery.message
            assert isinstance(sample, IterationSample)
            if not sample.due_ns or sample.time_ns not in {each.time_ns for each in self.samples}:
                self.samples.append(sample)
            if sample.due_ns:
                self.due.append(sample)

        await self.bus.subscribe(ITERATIONS.pattern("tb"), take)

    async def wait_half_a_period(self, asked: WorkOrder, period_us: int, enough: Callable[[], bool]) -> None:
        """Have a job wait for so long after it is due, in each iteration.

        Args:
            asked: an order about its rank 0.
            period_us: of its iterations.
            enough: so no more.
        """
        pace = Pace(begin_ns=1, period_us=period_us)
        while not enough():
            update = {"action": OrderAction.PACE, "pace": pace}
            assert (await self.ask(asked.model_copy(update=update))).obeyed
            known = len(self.due)
            await until(lambda known=known: enough() or len(self.due) > known, what="the end of a phase")  # type: ignore[misc]
            pace = Pace(begin_ns=self.due[-1].due_ns + period_us * 500 if self.due else 1, period_us=period_us)

    def freezer_state(self) -> str:
        """As the worker's group has it; empty: the group is gone, or has none."""
        intent = self.files().read(Intent)
        if intent is None or intent.group is None:
            return ""
        try:
            return Path(str(intent.group["freezer"])).read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def is_frozen(self) -> bool:
        """Whether the worker's group is stopped, or about to be."""
        return self.freezer_state() in {"FROZEN", "FREEZING", "1"}

    def pause(self) -> Pause:
        """The last one that was recorded."""
        record = self.files().read(Pause)
        assert record is not None
        return record

    @staticmethod
    def remove_groups() -> None:
        """End what a test has left."""
        remove_groups(ROOT)


def remove_groups(root: str) -> None:
    """End all groups of workers below a managed root."""
    layout = detect()
    tops = {mount.directory for mount in layout.distinct_mounts()}
    if layout.freezer is not None:
        tops.add(layout.freezer.directory)
    for directory in {str(path.relative_to(top)) for top in map(Path, tops) for path in top.glob(f"{root}/*/*")}:
        if (Path(next(iter(tops))) / directory).is_dir():
            ManagedCgroup(layout, directory, freezer=True).end()


def groups_left() -> list[str]:
    """Directories of this lab's groups, in any hierarchy."""
    return sorted(str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{ROOT}/*/*") if path.is_dir())
