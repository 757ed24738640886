"""Limits that the kernel refuses, as bounds of one container, known from replies and tried again from time to time.

A cut that is refused (a CPU burst, a group below with more, memory in use, a file that cannot be written) makes what
holds the container's floor; a raise (a parent group with less) makes it its ceiling. The policies decide within them,
so a floor counts in full, others share what is left, and what a ceiling leaves is theirs. CPU and memory are apart. A
container that takes no limit at all stays admitted without it, and counts what it uses.

A bound holds for FIRST_RETRY_NS, and twice as long after each refusal in a row, at most `REFUSED_RETRY_MAX_S`. Then the
policy's own value is ordered again; once that is accepted the bound is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from schemas.limits import REFUSED_RETRY_MAX_S
from services.allocator.arrays.array_types import BoolArray, IntArray, Ints
from services.allocator.arrays.limit_values import NO_BOUND, UNLIMITED
from services.allocator.state.rows import Rows

FIRST_RETRY_NS: Final = 200_000_000
"""A memory limit may be refused because usage grew while it was on its way: the next one is higher."""
_RETRY_MAX_NS: Final = int(REFUSED_RETRY_MAX_S * 1e9)
_MOST_DOUBLINGS: Final = (_RETRY_MAX_NS // FIRST_RETRY_NS).bit_length()


class _Columns(NamedTuple):
    """Of one resource in `Rows`."""

    floor: str
    ceiling: str
    retry_ns: str
    refusals: str
    ordered: str
    deferred: str
    kernel: str


QUOTA: Final = _Columns(
    *("quota_floor_us", "quota_ceiling_us", "quota_retry_ns", "quota_refusals"),
    *("quota_ordered_us", "quota_deferred_us", "quota_us"),
)
LIMIT: Final = _Columns(
    *("limit_floor_bytes", "limit_ceiling_bytes", "limit_retry_ns", "limit_refusals"),
    *("limit_ordered_bytes", "limit_deferred_bytes", "limit_bytes"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one resource's orders, shape (K,) each."""

    ordered: IntArray
    """0: unchanged."""
    held: IntArray
    """By the reply; `UNLIMITED`: no limit."""
    refused: BoolArray
    """By the kernel."""


def record(rows: Rows, index: IntArray, answers: tuple[Answer, Answer], seq: int, now_ns: int) -> None:
    """Record a reply: of the quotas and the memory limits of the rows ``index``.

    Replies may come twice, or late: of each row only one to a newer update than before counts.

    Args:
        rows: all rows.
        index: shape (K,).
        answers: of quotas, of memory limits.
        seq: sequence of the limit update.
        now_ns: monotonic.
    """
    newer = rows.bounds_seq[index] < seq
    rows.bounds_seq[index[newer]] = seq
    for names, answer in zip((QUOTA, LIMIT), answers, strict=True):
        floor, ceiling = getattr(rows, names.floor), getattr(rows, names.ceiling)
        known = getattr(rows, names.refusals)[index] > 0
        bounded = (floor[index] > 0) | (ceiling[index] > 0)
        beyond = (answer.ordered < floor[index]) | ((answer.ordered > ceiling[index]) & (ceiling[index] > 0)) | ~bounded
        accepted = newer & known & ~answer.refused & (answer.ordered > 0) & (answer.ordered == answer.held) & beyond
        clear(rows, names, index[accepted])
        if (mine := newer & answer.refused).any():
            _bound(rows, names, index[mine], (answer.ordered[mine], answer.held[mine]), now_ns)


def clear(rows: Rows, names: _Columns, index: IntArray) -> None:
    """Forget what was refused of one resource of these rows."""
    for name in (names.floor, names.ceiling, names.retry_ns, names.refusals):
        getattr(rows, name)[index] = 0


def _bound(rows: Rows, names: _Columns, index: IntArray, values: tuple[IntArray, IntArray], now_ns: int) -> None:
    ordered, held = values
    floor, ceiling, retry_ns, refusals = (getattr(rows, name) for name in names[:4])
    # An order that was under way already when the bound became known is no new attempt.
    attempt = now_ns >= retry_ns[index]
    in_a_row = np.where(now_ns - retry_ns[index] <= _RETRY_MAX_NS, refusals[index], 0)
    refusals[index] = np.maximum(in_a_row + attempt, 1)
    pause_ns = FIRST_RETRY_NS << np.minimum(refusals[index] - 1, _MOST_DOUBLINGS)
    retry_ns[index] = np.where(attempt, now_ns + np.minimum(pause_ns, _RETRY_MAX_NS), retry_ns[index])
    limited = held >= 0
    floor[index] = np.where(limited, np.where(ordered < held, held, floor[index]), 0)
    ceiling[index] = np.where(limited, np.where(ordered > held, held, ceiling[index]), 0)
    admitted = index[rows.admitted[index]]
    getattr(rows, names.ordered)[admitted] = held[rows.admitted[index]]
    getattr(rows, names.deferred)[index] = 0


class Bounds(NamedTuple):
    """Shape (N,) each: what may be ordered now; what is ordered already is always within them."""

    floor: Ints
    """Negative: none."""
    ceiling: Ints
    """`NO_BOUND`: none."""


def bounds(rows: Rows, names: _Columns, now_ns: int) -> Bounds:
    """Bounds of one resource of all rows."""
    floor, ceiling, retry_ns, refusals = (getattr(rows, name) for name in names[:4])
    holds, ordered = (refusals > 0) & (now_ns < retry_ns), getattr(rows, names.ordered)
    return Bounds(
        np.where(holds & (floor > 0), np.minimum(floor, ordered), UNLIMITED),
        np.where(holds & (ceiling > 0), np.maximum(ceiling, ordered), NO_BOUND),
    )


def current(rows: Rows, names: _Columns, now_ns: int) -> BoolArray:
    """Rows whose refusal holds, or was due to be tried again so lately that the policy may not have wanted to; (N,)."""
    retry_ns, refusals = getattr(rows, names.retry_ns), getattr(rows, names.refusals)
    lately: BoolArray = (refusals > 0) & (now_ns - retry_ns <= _RETRY_MAX_NS)
    return lately


def takes_no_limit(rows: Rows, names: _Columns) -> BoolArray:
    """Rows that the kernel keeps without any limit of this resource, shape (N,)."""
    none: BoolArray = (getattr(rows, names.kernel) == UNLIMITED) & (getattr(rows, names.refusals) > 0)
    return none


def retry_due(rows: Rows, now_ns: int) -> BoolArray:
    """Rows that are to be given their first limit again, shape (N,)."""
    due = np.zeros(rows.count, dtype=np.bool_)
    for names in (QUOTA, LIMIT):
        due |= rows.admitted & (getattr(rows, names.ordered) < 0) & (getattr(rows, names.retry_ns) <= now_ns)
    return due
