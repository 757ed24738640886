"""Settings of the Slurm engine. Every field is a variable ``TURNBUCKLE_SLURM__<FIELD>``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, StringConstraints

from schemas.sizes import parse_size
from services._runtime.service.settings import CommonSettings

_Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]*$")]


def _plain_path(path: Path) -> Path:
    """Slurm gives '%' and blanks in names of files a meaning."""
    if not path.is_absolute() or not all(character.isalnum() or character in "/._-" for character in str(path)):
        raise ValueError("not an absolute path of letters, digits and /._-")
    return path


def _kind_and_size(text: str) -> str:
    kind, equals, size = text.partition("=")
    if not (kind and equals):
        raise ValueError(f"{text!r} is not like a100=80GiB")
    parse_size(size)
    return text


class SlurmSettings(CommonSettings):
    """How training jobs become Slurm's."""

    service: ClassVar[str] = "slurm"

    directory: Annotated[
        Path,
        AfterValidator(_plain_path),
        Field(description="directory that this host and all nodes share: scripts, logs, what became of workers"),
    ]
    slots: Annotated[
        Literal["cpus", "gpus"],
        Field(description="what a node's slots are: its processors (CPUTot), or the GPUs of its Gres"),
    ] = "cpus"
    gpu_memory: Annotated[
        tuple[Annotated[str, AfterValidator(_kind_and_size)], ...],
        Field(
            description="memory of each type of GPU that Gres names, such as a100=80GiB,l4=24GiB: what plans of jobs "
            "with a model count with"
        ),
    ] = ()
    partition: Annotated[_Word, Field(description="only its nodes, and jobs go there; empty: all nodes")] = ""
    account: Annotated[_Word, Field(description="Slurm account of the jobs; empty: the user's default")] = ""
    qos: Annotated[_Word, Field(description="quality of service of the jobs; empty: the default")] = ""
    poll_interval_s: Annotated[
        float, Field(gt=0, le=60, description="seconds between two readings of the queue (squeue)")
    ] = 5.0
    command_timeout_s: Annotated[
        float, Field(gt=0, le=600, description="seconds after which a command of Slurm has failed")
    ] = 15.0
    ready_within_s: Annotated[
        float,
        Field(
            ge=0,
            le=86_400,
            description="seconds that a worker's ready file is waited for; without one it counts as ready since its "
            "start",
        ),
    ] = 10.0
    settle_s: Annotated[
        float,
        Field(
            ge=0,
            le=600,
            description="seconds that a worker's last note is waited for once Slurm's job has ended: as long as the "
            "shared file system hides new files (NFS: acdirmax)",
        ),
    ] = 5.0
    held_days: Annotated[
        float, Field(gt=0, description="days after which a held job that was not started again is cancelled")
    ] = 7.0
    log_days: Annotated[float, Field(gt=0, description="days that logs of ended attempts are kept")] = 7.0
    allow_root: Annotated[
        bool, Field(description="let jobs run as root; they run as the user that this service is started as")
    ] = False
    holder_directory: Annotated[
        Path,
        Field(description="directory of this host for the lock by which a restart differs from a second adapter"),
    ] = Path("/tmp/turnbuckle-slurm")  # noqa: S108 - nothing but a lock, of a file that is opened without links

    @property
    def gpu_memory_bytes(self) -> dict[str, int] | None:
        """Of a GPU, by its type; None: slots are processors."""
        pairs = (text.partition("=") for text in self.gpu_memory)
        return {kind: parse_size(size) for kind, _, size in pairs} if self.slots == "gpus" else None
