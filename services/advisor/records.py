"""Job records and local runs in memory, without duplicates."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Collection
from datetime import date
from types import MappingProxyType
from typing import Final

from schemas.codec import CodecError, encode
from schemas.jobs import (
    MAX_DURATION_S,
    Attributes,
    Configuration,
    JobRecord,
    TaskFeatures,
    implausible_field,
    without_zero_prices,
)
from schemas.message import Message
from schemas.runs import RunEnd, RunProfile
from services.advisor.core.accelerator_times import AcceleratorTimes, Step, measured_step
from services.advisor.core.questions import MachineKey, MeasuredMachine, MeasuredTasks, is_usable, lasted_enough

_MOST_VARIANTS: Final = 64
"""Of the attributes on one machine: beyond that they are notes on each run, and not choices."""


class Records:
    """Records and local runs, with counts of rejected and repeated ones; the caller logs the reasons."""

    def __init__(self, held_out_tasks: Collection[str] = ()) -> None:
        """`held_out_tasks`: tasks whose jobs are ignored."""
        self._held_out_tasks = frozenset(held_out_tasks)
        self.jobs: dict[str, JobRecord] = {}
        self.runs: dict[str, RunProfile] = {}
        self.rejected = 0
        self.repeated = 0
        self._digests: dict[str, bytes] = {}
        self._measured: MeasuredTasks | None = None
        self._tasks: dict[str, TaskFeatures] = {}
        self._named_runs: dict[str, str] = {}
        """Local run by task, as records name it; its profile may arrive later."""
        self._batches: defaultdict[str, set[int]] = defaultdict(set)
        self._providers: set[str] = set()
        self._machines: dict[MachineKey, Configuration] = {}
        self._attributes: defaultdict[MachineKey, dict[str, list[Attributes]]] = defaultdict(dict)
        """Distinct attributes of configurations, by machine and task."""
        self._steps: list[Step] = []
        """On single accelerators."""
        self._priced: dict[tuple[str, str, date], JobRecord] = {}

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def priced(self) -> list[JobRecord]:
        """One record per machine and day of its price, for the price listing."""
        return list(self._priced.values())

    def add(self, record: JobRecord) -> str | None:
        """Add a record; returns why it is rejected, or None. A repeated job is ignored."""
        if record.task.task in self._held_out_tasks:
            return None
        if record.job in self.jobs:
            self.repeated += 1
            return None
        if not _finite(record.task.attributes) or not _finite(record.configuration.attributes):
            return self._reject(f"job {record.job}: a feature is not finite")
        if wrong := implausible_field(record):
            return self._reject(f"job {record.job}: {wrong}")
        if (price := without_zero_prices(record.price)) != record.price:
            record = record.model_copy(update={"price": price})
        if (reason := self._add_digest(f"job {record.job}", record)) is not None:
            return self._reject(reason)
        self.jobs[record.job] = record
        self._index(record)
        return None

    def _reject(self, reason: str) -> str:
        self.rejected += 1
        return reason

    def _add_digest(self, name: str, message: Message) -> str | None:
        """Returns why a message cannot be encoded: files and JSON may exceed the limits of a message."""
        try:
            self._digests[name] = hashlib.sha256(encode(message)).digest()
        except CodecError as error:
            return f"{name}: {error}"
        return None

    def _index(self, record: JobRecord) -> None:
        task, where = record.task.task, record.configuration
        self._tasks[task] = record.task
        self._batches[task].add(where.batch_size)
        self._providers.add(where.provider)
        machine = (where.provider, where.instance_type)
        self._machines[machine] = where
        found = self._attributes[machine].setdefault(task, [])
        if len(found) < _MOST_VARIANTS and where.attributes not in found:
            found.append(where.attributes)
        if (step := measured_step(record)) is not None:
            self._steps.append(step)
        if record.local_run:
            self._named_runs[task] = record.local_run
        if record.price is not None:
            self._priced.setdefault((where.provider, where.instance_type, record.price.as_of), record)
        self._measured = None

    def add_run(self, profile: RunProfile) -> str | None:
        """Add a local run; returns why it is rejected, or None. The first one of a name is kept."""
        if profile.run in self.runs:
            self.repeated += 1
            return None
        if not _finite(profile.task.attributes) or not is_usable(profile):
            return self._reject(f"local run {profile.run}: no samples and not finished, or a feature is not finite")
        if profile.duration_s > MAX_DURATION_S:
            return self._reject(f"local run {profile.run}: {profile.duration_s:.3g} s is more than ten years")
        if (reason := self._add_digest(f"run {profile.run}", profile)) is not None:
            return self._reject(reason)
        self.runs[profile.run] = profile
        self._measured = None
        return None

    def data_hash(self) -> str:
        """A digest of all training data, independent of their order."""
        whole = hashlib.sha256()
        for name in sorted(self._digests):
            whole.update(name.encode("utf-8", "surrogatepass") + b"\0" + self._digests[name])
        return whole.hexdigest()

    def measured(self) -> MeasuredTasks:
        """Tasks, local runs and batch sizes for completing questions; a copy, for other threads."""
        if self._measured is None:
            runs = dict(self.runs)
            tasks = {profile.task.task: profile.task for profile in runs.values()} | self._tasks
            local: dict[str, str] = {}
            # Finished runs first: they carry more information than stopped ones.
            for profile in sorted(runs.values(), key=lambda one: one.end is not RunEnd.FINISHED):
                if profile.end is not RunEnd.FAILED and lasted_enough(profile):
                    local.setdefault(profile.task.task, profile.run)
            local |= {task: run for task, run in self._named_runs.items() if run in runs}
            self._measured = MeasuredTasks(
                MappingProxyType(tasks),
                MappingProxyType(runs),
                MappingProxyType(local),
                frozenset(self._providers),
                MappingProxyType({name: tuple(sorted(sizes)) for name, sizes in self._batches.items()}),
                MappingProxyType({key: self._machine(key, newest) for key, newest in self._machines.items()}),
                frozenset(self._named_runs.values()),
                AcceleratorTimes(tuple(self._steps)),
            )
        return self._measured

    def _machine(self, key: MachineKey, newest: Configuration) -> MeasuredMachine:
        tasks = {task: tuple(found) for task, found in self._attributes[key].items()}
        every: list[Attributes] = []
        for one in (each for found in tasks.values() for each in found):
            if one not in every and len(every) < _MOST_VARIANTS:
                every.append(one)
        return MeasuredMachine(newest, MappingProxyType(tasks), tuple(every))


def _finite(attributes: Attributes) -> bool:
    return all(math.isfinite(value) for value in attributes.values() if isinstance(value, float))
