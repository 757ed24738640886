"""What an application's containers used without limits: the peers' starting point, and what limits are derived from.

A profile comes from a run of its own, with another seed than the runs that are compared. One value per container and
CFS period of 100 ms; the key is the container's name (label ``turnbuckle.name``), which it keeps from run to run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from schemas.apps import PERIOD_US

Ints: TypeAlias = NDArray[np.int64]

PERIODS_PER_S: Final = 1_000_000 // PERIOD_US
_VERSION: Final = 1


@dataclass(frozen=True)
class ContainerProfile:
    """One container. A short-lived one has fewer periods than the others."""

    used_us: tuple[int, ...]
    """CPU time per period, microseconds."""
    memory_bytes: tuple[int, ...]
    """Usage at the end of each period."""
    first_period: int = 0
    """Period of the profile at which it was first seen."""

    @cached_property
    def max_used_us(self) -> int:
        """Largest use in one period, microseconds."""
        return max(self.used_us, default=0)

    @cached_property
    def max_second_used_us(self) -> int:
        """Largest mean over one second (any ten periods in a row), microseconds per period, rounded up.

        One second is what monitoring resolves, hence what a static limit is chosen from (thesis 2.6.2, 2.6.3).
        """
        return _max_mean(np.array(self.used_us, dtype=np.int64), PERIODS_PER_S)

    @cached_property
    def max_memory_bytes(self) -> int:
        """Largest usage, bytes."""
        return max(self.memory_bytes, default=0)

    @property
    def last_period(self) -> int:
        """Period after the last one."""
        return self.first_period + len(self.used_us)


@dataclass(frozen=True)
class Profile:
    """An application."""

    containers: Mapping[str, ContainerProfile]

    @cached_property
    def total_used_us(self) -> Ints:
        """Use of all containers together per period, microseconds; shape (periods,)."""
        return self._total({name: one.used_us for name, one in self.containers.items()})

    @cached_property
    def total_memory_bytes(self) -> Ints:
        """Usage of all containers together per period, bytes; shape (periods,)."""
        return self._total({name: one.memory_bytes for name, one in self.containers.items()})

    @property
    def sum_of_second_maxima_us(self) -> int:
        """Every container's `max_second_used_us`, added up, microseconds per period."""
        return sum(one.max_second_used_us for one in self.containers.values())

    @property
    def sum_of_memory_maxima_bytes(self) -> int:
        """Every container's `max_memory_bytes`, added up, bytes."""
        return sum(one.max_memory_bytes for one in self.containers.values())

    def max_total_used_us(self, seconds: float) -> int:
        """Largest mean of the total use over so many seconds in a row, microseconds per period, rounded up.

        1 s and 10 s are what a matched and a tight application limit are derived from (measured/policy.md section 1).
        """
        return _max_mean(self.total_used_us, max(1, round(seconds * PERIODS_PER_S)))

    @property
    def max_total_memory_bytes(self) -> int:
        """Largest usage of all containers together, bytes."""
        return int(self.total_memory_bytes.max(initial=0))

    def _total(self, series: Mapping[str, tuple[int, ...]]) -> Ints:
        periods = max((one.first_period + len(series[name]) for name, one in self.containers.items()), default=0)
        total = np.zeros(periods, dtype=np.int64)
        for name, one in self.containers.items():
            total[one.first_period : one.first_period + len(series[name])] += np.array(series[name], dtype=np.int64)
        return total

    def write(self, path: Path) -> None:
        """Write as JSON, whole or not at all."""
        containers = {
            name: {
                "first_period": one.first_period,
                "used_us": [int(value) for value in one.used_us],
                "memory_bytes": [int(value) for value in one.memory_bytes],
            }
            for name, one in self.containers.items()
        }
        text = json.dumps({"version": _VERSION, "period_us": PERIOD_US, "containers": containers})
        unfinished = path.with_name(f"{path.name}.part")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)


def write(profile: Profile, path: Path) -> None:
    """`Profile.write`."""
    profile.write(path)


def read(path: Path) -> Profile:
    """A profile that `write` has written.

    Raises:
        ValueError: it is none.
        OSError: it cannot be read.
    """
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = (stored["version"], stored["period_us"]) == (_VERSION, PERIOD_US)
        containers = {
            name: ContainerProfile(tuple(one["used_us"]), tuple(one["memory_bytes"]), one["first_period"])
            for name, one in stored["containers"].items()
        }
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path.name} is no profile: {error}") from error
    if not known:
        raise ValueError(f"{path.name} is a profile of another version or another period")
    return Profile(containers)


def _max_mean(values: Ints, width: int) -> int:
    """Largest mean of ``width`` neighbours, rounded up; of all values where there are fewer."""
    if not len(values):
        return 0
    width = min(width, len(values))
    sums = np.cumsum(np.concatenate(([0], values)))
    largest = int((sums[width:] - sums[:-width]).max())
    return -(-largest // width)
