"""Local runs: resource usage of a training job's workers, each second, for some minutes (thesis 4.4.1)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Final

import numpy as np
from pydantic import field_serializer, field_validator, model_validator

from schemas.jobs import Configuration, Name, NonNegativeFloat, PositiveFloat, TaskFeatures
from schemas.message import Count, Float64Column, Message

SERIES: Final = ("cpu_cores", "memory_bytes", "network_in_bytes_per_s", "network_out_bytes_per_s")
"""Columns of `WorkerSeries`, in the order of Table 4.1."""


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
    reason: str = ""
    speed: MachineSpeed | None = None
    """Of the local machine, measured before the run; None: it was not."""

    @property
    def machine(self) -> Configuration:
        """The configuration without what is estimated from the run."""
        attributes = {name: one for name, one in self.configuration.attributes.items() if name not in ESTIMATES}
        return self.configuration.model_copy(update={"attributes": attributes})
