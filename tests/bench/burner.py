"""The load of one busy container: ``python -S burner.py SEED PROFILE``. Standard library only, one wake-up per period.

The demand changes every one to five periods. *mixed*: between nothing and 6 ms of CPU per 100 ms, 1.7 ms in the mean,
so that thirty of them leave most of two cores free. *bursts*: mostly next to nothing, and up to 3 ms, 0.6 ms in the
mean, so that a hundred of them can be throttled now and then on two cores. The loop is open: what a throttled period
could not do is not caught up.
"""

from __future__ import annotations

import random
import sys
import time

PERIOD_S = 0.1
DEMANDS_S = {
    "mixed": (0.0, 0.0, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.006),
    "bursts": (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.002, 0.003),
}


def main() -> None:
    """Burn until killed."""
    chance, demands_s = random.Random(int(sys.argv[1])), DEMANDS_S[sys.argv[2]]
    next_s = time.monotonic() + chance.random() * PERIOD_S
    while True:
        demand_s = chance.choice(demands_s)
        for _ in range(chance.randint(1, 5)):
            time.sleep(max(0.0, next_s - time.monotonic()))
            next_s = max(next_s + PERIOD_S, time.monotonic())
            until_s = time.thread_time() + demand_s
            while time.thread_time() < until_s and time.monotonic() < next_s:
                pass


main()
