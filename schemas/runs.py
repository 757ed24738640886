"""Local runs: resource usage of a training job's workers, each second, for some minutes (thesis 4.4.1)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from pydantic import Field, field_serializer, field_validator, model_validator

from schemas.jobs import Configuration, Name, NonNegativeFloat, PositiveFloat, TaskFeatures
from schemas.message import Count, Float64Column, Message

SERIES: Final = ("cpu_cores", "memory_bytes", "network_in_bytes_per_s", "network_out_bytes_per_s")
"""Columns of `WorkerSeries`, in the order of Table 4.1."""
HIGH_LOST_SHARE: Final = 0.1
"""From here on a run's duration says more of the machine's other work than a rate's usual error does."""
HIGH_OTHER_SHARE: Final = 0.25
"""Of the machine's processors. Other work takes caches, memory bandwidth and clock rate also where no thread waits."""
_SHOWN_STEAL_SHARE: Final = 0.01


class RunSample(Message):
    """Resource usage of one worker in the last second."""

    type_name: ClassVar[str] = "turnbuckle.run.v1.RunSample"

    run: str
    worker: str
    """``master``, ``worker-1``, ``worker-2``..."""
    elapsed_s: NonNegativeFloat
    cpu_cores: NonNegativeFloat
    memory_bytes: Count
    network_in_bytes_per_s: NonNegativeFloat
    network_out_bytes_per_s: NonNegativeFloat


class WorkerSeries(Message):
    """One worker's local run time series (Table 4.1); columns of the same length, one element per interval."""

    type_name: ClassVar[str] = "turnbuckle.run.v1.WorkerSeries"

    worker: str
    cpu_cores: Float64Column
    memory_bytes: Float64Column
    network_in_bytes_per_s: Float64Column
    network_out_bytes_per_s: Float64Column

    @field_validator(*SERIES, mode="before")
    @classmethod
    def _from_numbers(cls, value: object) -> object:
        """In JSON a series is a list of numbers."""
        if not isinstance(value, (list, tuple)):
            return value
        try:
            return np.asarray(value, dtype="<f8").tobytes()
        except (TypeError, OverflowError) as error:  # only a ValueError makes the message invalid
            raise ValueError(f"no list of numbers: {error}") from error

    @field_serializer(*SERIES, when_used="json")
    def _as_numbers(self, value: bytes) -> list[float]:
        numbers: list[float] = np.frombuffer(value, dtype="<f8").tolist()
        return numbers

    @model_validator(mode="after")
    def _check_columns(self) -> WorkerSeries:
        lengths = {len(getattr(self, name)) for name in SERIES}
        if len(lengths) != 1 or lengths.pop() % 8:
            raise ValueError(f"series of {self.worker}: columns differ in length, or hold no whole numbers of 8 bytes")
        if not all(np.isfinite(self.column(name)).all() and (self.column(name) >= 0).all() for name in SERIES):
            raise ValueError(f"series of {self.worker}: a value is negative or not finite")
        return self

    def column(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """One series as a read-only view, shape ``(samples,)``."""
        return np.frombuffer(getattr(self, name), dtype="<f8")

    @property
    def samples(self) -> int:
        """Number of intervals."""
        return len(self.cpu_cores) // 8


Share = Annotated[float, Field(ge=0, le=1)]


class CpuContention(Message):
    """What other work of the machine took from a local run, over the whole run."""

    type_name: ClassVar[str] = "turnbuckle.run.v1.CpuContention"

    cores: PositiveFloat
    """Processors of the machine."""
    other_cores: NonNegativeFloat
    """Processors that other work used."""
    own_cores: NonNegativeFloat
    """Processors that the workers used."""
    limit_cores: PositiveFloat
    """Processors that the workers may use: the sum of their limits, or those of the machine."""
    steal_share: Share = 0.0
    """Of the processor time that was wanted, what the hypervisor gave to other guests (proc_stat(5))."""
    wait_share: Share | None = None
    """Of the time in which the workers' threads were ready to run, that without a processor: others had it, or other
    threads of the workers, or a group above theirs has a limit. Their own limits' throttling is left out. None: the
    kernel does not count it."""

    @property
    def lost_share(self) -> float:
        """Of the run's duration, at most so much was lost to other work: on a quiet machine it is shorter by this.

        No more than the waiting. On a quiet machine the workers would use what others used here, too, and no more than
        their limit: waiting for each other, or while the limit would have stopped them, loses nothing.
        """
        quiet_cores = min(self.own_cores + self.other_cores, self.limit_cores)
        bound = 1.0 - self.own_cores / quiet_cores if 0 < self.own_cores < quiet_cores else 0.0
        return 1.0 - (1.0 - min(self.wait_share or 0.0, bound)) * (1.0 - self.steal_share)

    @property
    def is_high(self) -> bool:
        """Whether a duration measured so is that of a busy machine."""
        return self.lost_share >= HIGH_LOST_SHARE or self.other_cores >= HIGH_OTHER_SHARE * self.cores

    @property
    def summary(self) -> str:
        """One sentence, such as ``other work used 1.3 of 2 cores, the workers waited for a core 35 % of the time``."""
        text = f"other work used {self.other_cores:.2g} of {self.cores:g} cores"
        if self.wait_share is not None:
            text += f", the workers waited for a core {100 * self.wait_share:.0f} % of the time"
        if self.steal_share >= _SHOWN_STEAL_SHARE:
            text += f", the hypervisor took {100 * self.steal_share:.0f} % of what was wanted"
        return text


class RunEnd(StrEnum):
    """Why a local run ended."""

    FINISHED = "finished"
    """The command ended by itself, with exit code 0: `duration_s` is the whole training's."""
    TIMED_OUT = "timed_out"
    """Stopped at its time limit."""
    INTERRUPTED = "interrupted"
    """Interrupted by a user or a signal."""
    FAILED = "failed"
    """A worker ended with another exit code."""

    @classmethod
    def _missing_(cls, value: object) -> RunEnd | None:
        """Values of 0.1, which streams, journals and Parquet files may still hold."""
        renamed = {"time_up": cls.TIMED_OUT}
        return renamed.get(value) if isinstance(value, str) else None


ESTIMATES: Final = frozenset(
    {"startup_s", "startup_error_s", "rate_error", "steps_per_s_from", "steps_per_s", "epoch_s", "whole_run_s"}
)
"""Attributes of a local run's configuration that are estimated from the run, and say nothing of its machine."""


class MachineSpeed(Message):
    """Calibration of a machine: rates of kinds of work that training is made of."""

    type_name: ClassVar[str] = "turnbuckle.run.v1.MachineSpeed"

    matmul_flops_per_cpu_s: PositiveFloat
    """Floating-point operations of single-precision matrix products per second of processor time."""
    copy_bytes_per_cpu_s: PositiveFloat
    """Bytes copied in memory, beyond the caches, per second of processor time."""
    disk_write_bytes_per_s: NonNegativeFloat = 0.0
    """Written and flushed to the disk of the run's files; 0: not measured."""
    loopback_bytes_per_s: NonNegativeFloat = 0.0
    """Through one TCP connection of the loopback interface; 0: not measured."""
    processor: str = ""
    """Model name of the processor, as ``/proc/cpuinfo`` gives it."""


class RunProfile(Message):
    """A local run: the task on one small, fixed configuration, with its series."""

    type_name: ClassVar[str] = "turnbuckle.run.v1.RunProfile"

    run: Name
    task: TaskFeatures
    configuration: Configuration
    """Of the local machine: the workers' limits."""
    command: tuple[str, ...] = ()
    """As typed; values that look like secrets are masked."""
    started_ns: Count = 0
    interval_s: PositiveFloat = 1.0
    duration_s: NonNegativeFloat
    """From the start of the workers to the end."""
    end: RunEnd
    exit_codes: tuple[int, ...] = ()
    """Per worker; negative: killed by that signal."""
    workers: tuple[WorkerSeries, ...]
    """The master first."""
    load_average: NonNegativeFloat | None = None
    """Of the machine at the start, over one minute."""
    reason: str = ""
    speed: MachineSpeed | None = None
    """Of the local machine, measured before the run; None: it was not."""
    contention: CpuContention | None = None
    """None: not measured (version 0.1)."""

    @property
    def machine(self) -> Configuration:
        """The configuration without what is estimated from the run."""
        attributes = {name: one for name, one in self.configuration.attributes.items() if name not in ESTIMATES}
        return self.configuration.model_copy(update={"attributes": attributes})
