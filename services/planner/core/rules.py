"""Where the released planners of Cephalo and Zorse and this one part; each difference is one flag. Pure.

Found by comparing released plans with their own models (benson-guo/cephalo a8c75d3, benson-guo/zorse 2fd6330).
`RELEASED` is for comparison with their published plans: it repeats their mistakes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Rules:
    """All false: the corrected rules."""

    memory_by_count: bool = False
    """Cephalo: the division of the state takes the memory of as many samples as a device has micro-batches, instead of
    the micro-batch's. So plans exceed the memory that they were planned with."""
    first_may_overflow: bool = False
    """Cephalo: the first division of samples that was found is taken, even if it does not fit."""
    rounds_down: bool = False
    """Cephalo: state that does not divide into whole parameters is left out, and the shares are scaled up; the devices'
    memory counts at 75 %, whatever share of it was asked for."""
    collectives_in_seconds: bool = False
    """Zorse with ``--use_agrs_comm_model``: collectives in seconds are compared with computing in milliseconds, so that
    they weigh nothing."""
    first_cut_must_fit: bool = False
    """Zorse: a micro-batch is given up where the plan without interleaving does not fit, though one with it may."""
    first_unfit_is_last: bool = False
    """Zorse: no micro-batch larger than one that was given up is tried, though layers are divided otherwise with it."""
    speed_by_position: bool = False
    """Zorse: where a group gets no layer, those behind it are taken for as fast as the one before them."""
    drops_remainder: bool = False
    """Zorse: micro-batches need not divide the batch, and the samples that are left over are not trained."""
    smallest_microbatch: int = 1
    """Zorse begins with 2."""


CORRECTED: Final = Rules()
RELEASED: Final = Rules(
    memory_by_count=True,
    first_may_overflow=True,
    rounds_down=True,
    collectives_in_seconds=True,
    first_cut_must_fit=True,
    first_unfit_is_last=True,
    speed_by_position=True,
    drops_remainder=True,
    smallest_microbatch=2,
)
