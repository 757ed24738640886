"""What the interleaving benchmark runs: columns, the jobs of a load, and the order of all runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

UPLINK_BITS_PER_S: Final = 100_000_000
GOODPUT_BITS_PER_S: Final = 95_000_000
"""What TCP carries of it: 1,448 of 1,514 bytes, less some for losses."""
LOAD: Final = 0.89
"""Share of the time in which the uplink would be busy if no two jobs sent at once."""
APART_S: Final = 0.06
"""Between the begins of two jobs: they start together, as jobs of one decision do."""
ALONE: Final = "alone"
EXAMPLES: Final = Path(__file__).parents[3] / "docs" / "examples" / "jobs"
ALONE_ITERATIONS: Final = 12


@dataclass(frozen=True, slots=True)
class Column:
    """One way to share the link, as a job's settings name it (`schemas.scheduling.JobSpec`)."""

    name: str
    congestion_control: str
    interleave: bool = False
    scaled: bool = True
    """False: through the same program, with F = 1, which makes it Reno."""


COLUMNS: Final = (
    Column(ALONE, "reno"),
    Column("reno", "reno"),
    Column("cubic", "cubic"),
    Column("bbr", "bbr"),
    Column("Cassini", "reno", interleave=True),
    Column("MLTCP", "mltcp"),
    Column("F = 1", "mltcp", scaled=False),
    Column("MLTCP on cubic", "mltcp_cubic"),
)
FEWER: Final = (ALONE, "reno", "cubic", "Cassini", "MLTCP")
"""Of more than two jobs."""
FEWEST: Final = (ALONE, "reno", "Cassini", "MLTCP")


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs that share an uplink, all alike, each with a worker on either side."""

    name: str
    jobs: int
    sent_bytes: int
    """Of each worker in each iteration."""
    iterations: int
    program: str = "traffic.py"
    change_at: int | None = None
    """From this iteration on the first job sends `CHANGED` of its bytes, and computes for longer by that."""
    bulk: bool = False
    """Beside them a flow that never pauses."""

    @property
    def sending_s(self) -> float:
        """Of an iteration whose job has the link for itself."""
        return self.sent_bytes * 8 / GOODPUT_BITS_PER_S

    @property
    def compute_s(self) -> float:
        """Of an iteration: so that the uplink is busy for `LOAD` of the time."""
        return round(self.jobs * self.sending_s / LOAD - self.sending_s, 2)

    @property
    def description(self) -> str:
        """For people."""
        each = f"{self.sent_bytes / 1e6:.2f} MB each way, {self.compute_s:.2f} s of compute"
        what = f"{self.jobs} jobs of {self.program}: {each}"
        changed = f", the first sends {CHANGED:g} of that from iteration {self.change_at} on" if self.change_at else ""
        return f"{what}{changed}{', a bulk flow beside' if self.bulk else ''}"

    def command(self, job: int, begin_at_s: float, iterations: int) -> list[str]:
        """Program and options of a job, from 0."""
        words = [str(EXAMPLES / self.program), "--compute", str(self.compute_s), "--iterations", str(iterations)]
        words += ["--begin-at", f"{begin_at_s + APART_S * job:.3f}"]
        if self.program == "ddp.py":
            return [*words, "--parameters", str(self.sent_bytes // 4)]
        words += ["--bytes", str(self.sent_bytes)]
        if self.change_at is not None and job == 0:
            after_s = self.compute_s + (1 - CHANGED) * self.sending_s
            words += ["--change-at", str(self.change_at), "--bytes-after", str(round(CHANGED * self.sent_bytes))]
            words += ["--compute-after", f"{after_s:.2f}"]
        return words


CHANGED: Final = 0.7


@dataclass(frozen=True, slots=True)
class Step:
    """One run: a column under a load."""

    load: Load
    column: Column
    round: int


@dataclass(frozen=True, slots=True)
class Part:
    """A load, its columns and how often each is run."""

    load: Load
    columns: tuple[str, ...]
    rounds: int

    def steps(self) -> Iterator[Step]:
        """Round by round, so that what the machine does besides meets all columns alike."""
        chosen = [column for column in COLUMNS if column.name in self.columns]
        for number in range(1, self.rounds + 1):
            for column in chosen:
                yield Step(self.load, column, number)


EVERY: Final = tuple(column.name for column in COLUMNS)
TWO: Final = Load("2 jobs", 2, 6_750_000, 30)
FULL: Final = (
    Part(TWO, EVERY, 5),
    Part(Load("3 jobs", 3, 4_000_000, 24), FEWER, 3),
    Part(Load("4 jobs", 4, 3_200_000, 24), FEWER, 3),
    Part(Load("6 jobs", 6, 2_400_000, 24), FEWER, 3),
    Part(Load("2 jobs of DDP", 2, 6_750_000, 24, "ddp.py"), FEWEST, 1),
)
"""About 72 minutes, by the lengths of single runs."""
QUICK: Final = (Part(TWO, EVERY, 1), Part(Load("3 jobs", 3, 4_000_000, 24), FEWEST, 1))
"""About 9 minutes, by the same."""
BULK: Final = Part(Load("2 jobs and a bulk flow", 2, 6_750_000, 30, bulk=True), (ALONE, "reno", "cubic", "MLTCP"), 3)
CHANGE: Final = Part(Load("2 jobs, one changes", 2, 6_750_000, 60, change_at=20), FEWEST, 3)


@dataclass(frozen=True, slots=True)
class Plan:
    """All parts of one call."""

    parts: tuple[Part, ...]
    only: tuple[str, ...] = field(default=())
    """Names of columns; empty: all."""

    def steps(self) -> list[Step]:
        """In order; alone is always among them, as the others are compared with it."""
        steps = [step for part in self.parts for step in part.steps()]
        return [step for step in steps if not self.only or step.column.name in (ALONE, *self.only)]


def make_plan(
    *,
    quick: bool = False,
    bulk: bool = False,
    change: bool = False,
    loads: Sequence[str] = (),
    only: Sequence[str] = (),
) -> Plan:
    """What the options ask for: with ``--bulk``, ``--change-batch`` or ``--loads`` only that, ``--quick`` once."""
    chosen = (part for part in FULL if part.load.name in loads)
    further = (*chosen, *((BULK,) if bulk else ()), *((CHANGE,) if change else ()))
    if further and quick:
        further = tuple(replace(part, rounds=1) for part in further)
    return Plan(further or (QUICK if quick else FULL), tuple(only))
