"""Load traces of production: requests per second, one line per second, an hour (the Autothrottle authors', MIT).

They are no part of this project: ``BENCH_TRACES`` or ``--traces`` names the directory that holds ``bursty.txt`` and
``diurnal.txt`` (github.com/microsoft/autothrottle, traces/).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

DIRECTORY_VARIABLE: Final = "BENCH_TRACES"
DEFAULT_DIRECTORY: Final = Path("../shared/data/autothrottle_traces")
NAMES: Final = ("bursty", "diurnal")


class TraceError(Exception):
    """A trace is missing or unreadable; the text says what to do."""


def directory(given: str | None = None) -> Path:
    """Where the traces are: what was given, else the variable, else beside the checkout."""
    return Path(given or os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY)


def read_trace(name: str, where: Path) -> Floats:
    """Requests per second of each second of a trace.

    Raises:
        TraceError: it is not there, or no list of rates.
    """
    path = where / f"{name}.txt"
    try:
        rates = np.array([float(line) for line in path.read_text(encoding="utf-8").split()])
    except OSError as error:
        raise TraceError(
            f"no trace {name}: {error.strerror}; {DIRECTORY_VARIABLE} or --traces names the directory with "
            f"{', '.join(f'{known}.txt' for known in NAMES)} (github.com/microsoft/autothrottle, traces)"
        ) from error
    except ValueError as error:
        raise TraceError(f"trace {name} is no list of rates: {error}") from error
    if len(rates) < 2 or not np.isfinite(rates).all() or rates.min() < 0 or rates.max() <= 0:
        raise TraceError(f"trace {name} is no list of rates: {len(rates)} values")
    return rates
