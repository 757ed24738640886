"""Types of arrays over rows (N) and applications (A), and rows as indices. Pure."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
AppIndex: TypeAlias = NDArray[np.integer[Any]]
ArrayT = TypeVar("ArrayT", bound="np.ndarray[Any, Any]")


def at(index: NDArray[np.int64]) -> NDArray[np.int64] | slice:
    """Rows as a slice where they are contiguous, which copies nothing."""
    if len(index) and index[-1] - index[0] == len(index) - 1 and (index[1:] > index[:-1]).all():
        return slice(int(index[0]), int(index[-1]) + 1)
    return index


def padded(array: ArrayT, count: int, fill: int = 0) -> ArrayT:
    """The array with at least ``count`` applications, its last axis; new ones begin with ``fill``."""
    missing = count - array.shape[-1]
    if missing <= 0:
        return array
    return cast("ArrayT", np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)], constant_values=fill))
