"""What the jobs' own lines say: iteration times, how much of the sending was at once, what a bulk flow got. Pure."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

BUSY_LOAD: Final = 4.0
"""A run that began at a higher load average is marked."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of a job; seconds since the epoch."""

    begin_s: float
    sending_s: float
    """Begin of its sending phase, which lasts until its end."""
    end_s: float
    sent_bytes: int
    congestion_control: str = ""


def parse(log: str) -> list[Iteration]:
    """The iterations of a job's first worker; other lines of its log are passed over."""
    found = []
    for line in log.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and {"sending_s", "end_s", "bytes"} <= row.keys():
            begin_s = row.get("begin_s", row["sending_s"])
            used = row.get("congestion_control", "")
            found.append(Iteration(begin_s, row["sending_s"], row["end_s"], row["bytes"], used))
    return found


def base_name(congestion_control: str) -> str:
    """Without the number that each runner on a host gives its own program: ``mltcp`` of ``mltcp_3``."""
    return re.sub(r"_\d+$", "", congestion_control)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a column, as it came."""

    load: str
    column: str
    round: int
    load_average: float
    """Of the machine, over a minute, at its begin."""
    jobs: list[list[Iteration]]
    bulk: list[Iteration] = field(default_factory=list)
    """What arrived of the bulk flow, piece by piece."""
    problems: list[str] = field(default_factory=list)
    """Why it does not count."""
    scheduler: dict[str, Any] = field(default_factory=dict)
    """Shifts and scores of links, as the scheduler told them at the end."""

    @property
    def began_busy(self) -> bool:
        """Whether the machine did much else then."""
        return self.load_average > BUSY_LOAD

    @property
    def counts(self) -> bool:
        """Whether it was what its column says."""
        return not self.problems and all(self.jobs)

    def settled(self) -> list[list[Iteration]]:
        """The last third of each job's iterations: before that, the scheduler learns its traffic and shifts it."""
        return [job[2 * len(job) // 3 :] for job in self.jobs]

    @property
    def iteration_s(self) -> float:
        """Mean of all settled iterations."""
        return statistics.fmean(one.end_s - one.begin_s for job in self.settled() for one in job)

    @property
    def sending_s(self) -> float:
        """Mean sending phase of them."""
        return statistics.fmean(one.end_s - one.sending_s for job in self.settled() for one in job)

    @property
    def learned(self) -> list[float]:
        """Bytes of an iteration that the scheduler knew last of each job, over those of the job's last one."""
        told = [job["traffic"] for name, job in sorted(self.scheduler.items()) if name != "links"]
        pairs = zip(told, self.jobs, strict=False)
        return [known["sent_bytes"] / job[-1].sent_bytes for known, job in pairs if known and job]

    @property
    def worst_s(self) -> float:
        """The longest of them."""
        return max(one.end_s - one.begin_s for job in self.settled() for one in job)

    @property
    def overlap(self) -> float:
        """Share of the time with anybody sending in which two jobs or more did, while all jobs ran."""
        settled = self.settled()
        return overlap(settled, max(job[0].begin_s for job in settled), min(job[-1].end_s for job in settled))

    def bulk_share(self, bits_per_s: float) -> float:
        """The bulk flow's rate while the settled iterations ran, over an equal share of the link.

        Without such a flow: nan.
        """
        settled = self.settled()
        begin_s, end_s = max(job[0].begin_s for job in settled), min(job[-1].end_s for job in settled)
        pieces = [one for one in self.bulk if one.sending_s >= begin_s and one.end_s <= end_s]
        if not pieces:
            return float("nan")
        rate = sum(one.sent_bytes for one in pieces) * 8 / (pieces[-1].end_s - pieces[0].sending_s)
        return rate / (bits_per_s / (len(self.jobs) + 1))

    def as_dict(self) -> dict[str, Any]:
        """For the record, every iteration included."""
        return (
            asdict(self)
            | {"began_busy": self.began_busy}
            | ({"iteration_s": self.iteration_s, "overlap": self.overlap} if self.counts else {})
        )


def overlap(jobs: Sequence[Sequence[Iteration]], begin_s: float, end_s: float) -> float:
    """Share of the sending time within a window in which two jobs or more sent; 0 where none did."""
    edges: list[tuple[float, int]] = []
    for one in (one for job in jobs for one in job):
        first, last = max(one.sending_s, begin_s), min(one.end_s, end_s)
        if first < last:
            edges += [(first, 1), (last, -1)]
    busy = shared = 0.0
    depth, since = 0, begin_s
    for at, change in sorted(edges):
        busy += (at - since) if depth >= 1 else 0.0
        shared += (at - since) if depth > 1 else 0.0
        depth, since = depth + change, at
    return shared / busy if busy else 0.0


def ratios(runs: Iterable[Run], alone: str) -> dict[tuple[str, str], list[float]]:
    """Mean iteration over that of the job alone in the same round, by load and column; runs that count only."""
    counted = [run for run in runs if run.counts]
    bases = {(run.load, run.round): run.iteration_s for run in counted if run.column == alone}
    found: dict[tuple[str, str], list[float]] = {}
    for run in counted:
        if (base_s := bases.get((run.load, run.round))) is not None:
            found.setdefault((run.load, run.column), []).append(run.iteration_s / base_s)
    return found
