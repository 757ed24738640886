"""Dead band of both CPU policies: a change that is not worth a write is not ordered. Pure.

Under constant demand no quota is written. Every quota write refills the bandwidth of its container (measured/escra.md
section 2), so a write must be worth it.

- A decrease is written when it exceeds CUT_SHARE of the quota and CUT_US together.
- An increase is written when it exceeds RAISE_SHARE of the quota after scaling into the application's free capacity
  including this step's decreases. A container of low use (not throttled, at most LOW_USE_SHARE of its quota used) is
  raised only by LOW_USE_RAISE_SHARE or more: its headroom follows what others leave and need not follow every step.
- When the increases do not fit, and one of them exceeds URGENT_SHARE of its quota and CUT_US, the application's small
  decreases (of RELEASE_SHARE or more) are written as well: many small decreases fund a starving container. When all
  missing increases are small, nothing is written. This is the hysteresis in a tight application: near a fixed point all
  targets are close and there is no free capacity; a real shift of demand exceeds the band and passes at once.
- An application above its limit gets every decrease.
- On a node whose processors are full nothing is decreased but to fund an increase or to come below the limit. Usage
  there shows what a container got, not what it needs: a decrease makes the next period worse, frees no processor time,
  and costs a write (decision 40). Unless the node has a CPU budget that is nearly used up (decision 62): there it makes
  room for another application.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from services.allocator.arrays.array_types import Bools, Ints
from services.allocator.arrays.grouping import any_per_app, per_app
from services.allocator.arrays.proportional_share import scale_to_fit
from services.allocator.cpu.policy_interface import CpuView

CUT_SHARE: Final = 0.05
"""Of the quota; measured/policy.md section 4 (b)."""
CUT_US: Final = 500
"""Microseconds per period; measured/policy.md section 4."""
RAISE_SHARE: Final = 0.02
"""Of the quota; measured/policy.md section 4 (0.4 b)."""
URGENT_SHARE: Final = 0.03
"""Of the quota, plus CUT_US: an increase beyond it is worth all small decreases. Tried on 60 constant loads with a
limit of 1.02 times the demand: 0.05 leaves a container at 0.92 of its demand, 0.02 writes five times as often under
noise."""
RELEASE_SHARE: Final = 0.01
"""Of the quota: a smaller decrease funds no container and is a write all the same."""
FULL_IDLE_PERCENT: Final = 5
"""Idle share of a node's processors at which they count as full."""
LOW_USE_SHARE: Final = 0.5
LOW_USE_RAISE_SHARE: Final = 0.25
"""Of the quota."""


def apply_dead_band(view: CpuView, decided: Bools, wanted_us: Ints) -> Ints:
    """Targets with the dead band applied: `ordered_us` where the change is not worth a write.

    Args:
        view: the step's observations.
        decided: shape N, rows of applications that are decided in this step; the others keep `ordered_us`.
        wanted_us: shape N, within [min, cap], their sum within the limit of each application where that is feasible.

    Returns:
        Targets, shape N, with the same properties.
    """
    apps = len(view.limit_us)
    ordered = view.ordered_us
    change = np.where(decided, wanted_us - ordered, 0)
    drop, rise = np.maximum(-change, 0), np.maximum(change, 0)
    band = ordered * CUT_SHARE + CUT_US
    out_of_bounds = (ordered < view.min_us) | (ordered > view.cap_us)
    low_use = ~view.throttled & (view.used_us <= ordered * LOW_USE_SHARE)
    least_rise = ordered * np.where(low_use, LOW_USE_RAISE_SHARE, RAISE_SHARE)
    rise[~((rise > least_rise) | out_of_bounds)] = 0
    full = (view.node_idle_percent >= 0) & (view.node_idle_percent <= FULL_IDLE_PERCENT)
    cut = np.where(((drop > band) & ~full) | out_of_bounds, drop, 0)

    room = view.limit_us - per_app(view.app, ordered - cut, apps)
    short = per_app(view.app, rise, apps) > room
    if short.any():
        release = short & (any_per_app(view.app, rise > ordered * URGENT_SHARE + CUT_US, apps) | (room < 0))
        small = (drop < ordered * RELEASE_SHARE) & (room >= 0)[view.app]
        cut = np.where(release[view.app] & ~small, drop, cut)
        room = view.limit_us - per_app(view.app, ordered - cut, apps)
        rise = scale_to_fit(view.app, rise, room)
        rise[~((rise > ordered * RAISE_SHARE) | out_of_bounds)] = 0
    return ordered + rise - cut
