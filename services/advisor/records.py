"""The records and local runs that an advisor holds in memory: each job once, whatever is told twice."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Collection
from datetime import date
from types import MappingProxyType

from schemas.codec import CodecError, encode
from schemas.jobs import Attributes, JobRecord, TaskFeatures
from schemas.message import Message
from schemas.runs import RunEnd, RunProfile
from services.advisor.core.questions import Measured, lasted_enough, tells_something


class Records:
    """What is known. Counts say what was left out, and why is logged by the caller."""

    def __init__(self, leave_out: Collection[str] = ()) -> None:
        """`leave_out`: tasks whose jobs are passed over."""
        self._leave_out = frozenset(leave_out)
        self.jobs: dict[str, JobRecord] = {}
        self.runs: dict[str, RunProfile] = {}
        self.rejected = 0
        self.repeated = 0
        self._digests: dict[str, bytes] = {}
        self._measured: Measured | None = None
        self._tasks: dict[str, TaskFeatures] = {}
        self._named_runs: dict[str, str] = {}
        """Local run by task, as records name it; it may be told of later."""
        self._batches: defaultdict[str, set[int]] = defaultdict(set)
        self._providers: set[str] = set()
        self._priced: dict[tuple[str, str, date], JobRecord] = {}

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def priced(self) -> list[JobRecord]:
        """One record per machine and day of its price: all that prices can be read from."""
        return list(self._priced.values())

    def add(self, record: JobRecord) -> str | None:
        """Take a record in; returns why not, or None. A job that is known already is passed over."""
        if record.task.task in self._leave_out:
            return None
        if record.job in self.jobs:
            self.repeated += 1
            return None
        if not _finite(record.task.attributes) or not _finite(record.configuration.attributes):
            return self._reject(f"job {record.job}: a feature is not finite")
        if (reason := self._note_digest(f"job {record.job}", record)) is not None:
            return self._reject(reason)
        self.jobs[record.job] = record
        self._note(record)
        return None

    def _reject(self, reason: str) -> str:
        self.rejected += 1
        return reason

    def _note_digest(self, name: str, message: Message) -> str | None:
        """Returns why it cannot be: a file, or JSON on the bus, may hold more than a message can on its way to us."""
        try:
            self._digests[name] = hashlib.sha256(encode(message)).digest()
        except CodecError as error:
            return f"{name}: {error}"
        return None

    def _note(self, record: JobRecord) -> None:
        task, where = record.task.task, record.configuration
        self._tasks[task] = record.task
        self._batches[task].add(where.batch_size)
        self._providers.add(where.provider)
        if record.local_run:
            self._named_runs[task] = record.local_run
        if record.price is not None:
            self._priced.setdefault((where.provider, where.instance_type, record.price.as_of), record)
        self._measured = None

    def add_run(self, profile: RunProfile) -> str | None:
        """Take a local run in; returns why not, or None. The first one of a name counts."""
        if profile.run in self.runs:
            self.repeated += 1
            return None
        if not _finite(profile.task.attributes) or not tells_something(profile):
            return self._reject(f"local run {profile.run}: no samples and not finished, or a feature is not finite")
        if (reason := self._note_digest(f"run {profile.run}", profile)) is not None:
            return self._reject(reason)
        self.runs[profile.run] = profile
        self._measured = None
        return None

    def data_hash(self) -> str:
        """A digest of everything that a model learns from, in whatever order it came."""
        whole = hashlib.sha256()
        for name in sorted(self._digests):
            whole.update(name.encode("utf-8", "surrogatepass") + b"\0" + self._digests[name])
        return whole.hexdigest()

    def measured(self) -> Measured:
        """What questions are completed from; a copy, for other threads."""
        if self._measured is None:
            runs = dict(self.runs)
            tasks = {profile.task.task: profile.task for profile in runs.values()} | self._tasks
            local: dict[str, str] = {}
            # One that got to its end tells more than one that was cut.
            for profile in sorted(runs.values(), key=lambda one: one.end is not RunEnd.FINISHED):
                if profile.end is not RunEnd.FAILED and lasted_enough(profile):
                    local.setdefault(profile.task.task, profile.run)
            local |= {task: run for task, run in self._named_runs.items() if run in runs}
            self._measured = Measured(
                MappingProxyType(tasks),
                MappingProxyType(runs),
                MappingProxyType(local),
                frozenset(self._providers),
                MappingProxyType({name: tuple(sorted(sizes)) for name, sizes in self._batches.items()}),
            )
        return self._measured


def _finite(attributes: Attributes) -> bool:
    return all(math.isfinite(value) for value in attributes.values() if isinstance(value, float))
