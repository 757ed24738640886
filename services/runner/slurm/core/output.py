"""Output of ``squeue`` and ``scontrol``, read. Pure. Formats: squeue(1), scontrol(1), of Slurm 22.05."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

JOBS_FORMAT: Final = "%i|%T|%Q|%r|%k"
"""Of ``squeue --format``: id, state, priority, reason, comment; the comment last, as others' may hold anything."""
_COMMENT: Final = re.compile(r"turnbuckle:([a-z0-9-]{1,63}):([1-9][0-9]{0,6}):([0-9a-f]{8,32})")
_KEY: Final = re.compile(r"(?:^| )([A-Z][A-Za-z:_]*)=")
CPU: Final = "cpu"
"""Kind of device of a layer profile that was measured without a GPU."""
_GPUS: Final = re.compile(r"(?:^|,)gpu(?::([^:,()]+))?:([0-9]+)")
"""Type, if it has one, and number."""
_FINISHED: Final = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
_NOT_RESPONDING: Final = frozenset({"DOWN", "FUTURE", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "UNKNOWN"})
_CLOSED: Final = frozenset({"DRAIN", "FAIL", "INVAL", "INVALID_REG", "MAINTENANCE", "MAINT", "REBOOT", "RESERVED"})


class SlurmOutputError(ValueError):
    """Output that is not as Slurm writes it; the text holds the line."""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node of the cluster."""

    name: str
    address: str
    cpus: int
    memory_bytes: int
    gpus: int
    partitions: frozenset[str]
    states: frozenset[str]
    """Base state and flags, such as IDLE, DRAIN."""
    gpu_kind: str = ""
    """Type of its GPUs; empty: it has none, or of several types, or Slurm does not know it."""

    @property
    def responds(self) -> bool:
        """Whether its slurmd is there."""
        return not self.states & _NOT_RESPONDING

    def device(self, gpu_memory_bytes: Mapping[str, int] | None) -> tuple[str, int]:
        """Kind and memory (bytes) of what one slot has, as plans count with it; empty and 0: not known.

        Args:
            gpu_memory_bytes: of a GPU, by its type; None: slots are processors, each with a share of the memory.
        """
        if gpu_memory_bytes is None:
            return CPU, self.memory_bytes // max(1, self.cpus)
        return self.gpu_kind, gpu_memory_bytes.get(self.gpu_kind, 0)

    @property
    def takes_jobs(self) -> bool:
        """Whether Slurm would start jobs on it."""
        return self.responds and not self.states & _CLOSED


class Where(Enum):
    """Where a job stands in Slurm."""

    WAITING = "waiting"
    """It would be started."""
    HELD = "held"
    """It stays until it is released."""
    ACTIVE = "active"
    """On its nodes, or on the way there or back."""
    FINISHED = "finished"
    GONE = "gone"
    """Slurm knows nothing of it: it was never submitted, or is finished and forgotten (its MinJobAge)."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One of our jobs as Slurm has it."""

    job_id: int
    state: str
    held: bool
    reason: str
    job: str
    """The training job's name."""
    attempt: int
    lineage: str
    """Drawn at its submission: a later training job of the same name has another one."""

    @property
    def where(self) -> Where:
        """Where it stands."""
        if self.state in _FINISHED:
            return Where.FINISHED
        if self.state == "PENDING":
            return Where.HELD if self.held else Where.WAITING
        return Where.ACTIVE


def where_is(job: SlurmJob | None) -> Where:
    """Where it stands; None: Slurm does not know it."""
    return Where.GONE if job is None else job.where


def comment_of(job: str, attempt: int, lineage: str) -> str:
    """By which a job is found again."""
    return f"turnbuckle:{job}:{attempt}:{lineage}"


def parse_jobs(text: str) -> tuple[SlurmJob, ...]:
    """Our jobs in the output of ``squeue --noheader --format`` with `JOBS_FORMAT`; others are passed over.

    Raises:
        SlurmOutputError: a line does not have that form.
    """
    jobs = []
    for line in filter(None, text.splitlines()):
        fields = line.split("|", 4)
        if len(fields) != 5:
            raise SlurmOutputError(f"squeue: {line[:200]!r}")
        comment = _COMMENT.fullmatch(fields[4].strip())
        if comment is None:
            continue
        if not fields[0].isdecimal() or not fields[2].isdecimal():
            raise SlurmOutputError(f"squeue: {line[:200]!r}")
        held = int(fields[2]) == 0
        jobs.append(SlurmJob(int(fields[0]), fields[1], held, fields[3], comment[1], int(comment[2]), comment[3]))
    return tuple(jobs)


def parse_nodes(text: str) -> tuple[SlurmNode, ...]:
    """Nodes in the output of ``scontrol show nodes --oneliner``, in Slurm's order.

    Raises:
        SlurmOutputError: a line does not have that form.
    """
    lines = (line for line in text.splitlines() if line.strip() and line.strip() != "No nodes in the system")
    return tuple(_node(line) for line in lines)


def _node(line: str) -> SlurmNode:
    fields = _fields(line)
    gpus = _GPUS.findall(fields.get("Gres", ""))
    kinds = {kind for kind, _ in gpus}
    try:
        state = fields["State"]
        return SlurmNode(
            name=fields["NodeName"],
            address=fields.get("NodeAddr") or fields["NodeName"],
            cpus=int(fields["CPUTot"]),
            memory_bytes=int(fields["RealMemory"]) << 20,
            gpus=sum(int(count) for _, count in gpus),
            gpu_kind=kinds.pop() if len(kinds) == 1 else "",
            partitions=frozenset(filter(None, fields.get("Partitions", "").strip().split(","))),
            states=frozenset(re.findall("[A-Z_]+", state)) | ({"NOT_RESPONDING"} if "*" in state else set()),
        )
    except (KeyError, ValueError) as error:
        raise SlurmOutputError(f"scontrol show nodes: {line[:200]!r}") from error


def _fields(line: str) -> dict[str, str]:
    """``Key=value`` pairs of a line, whose values may hold blanks; the first counts: a person's reason comes last."""
    keys = list(_KEY.finditer(line))
    ends = [*(key.start() for key in keys), len(line)][1:]
    return {key[1]: line[key.end() : end].strip() for key, end in reversed(list(zip(keys, ends, strict=True)))}
