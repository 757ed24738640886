"""The load of one container: ``python -S burst_work.py SEED BURST_MS PAUSE_S``. Standard library only.

Bursts of a fixed amount of work on one thread, with a random pause of PAUSE_S to twice that between them; each burst's
work and duration are printed as two numbers of milliseconds: what is beyond the work was spent waiting.
"""

from __future__ import annotations

import random
import sys
import time


def main() -> None:
    """Work until killed."""
    chance, burst_s, pause_s = random.Random(int(sys.argv[1])), float(sys.argv[2]) / 1e3, float(sys.argv[3])
    while True:
        time.sleep(chance.uniform(pause_s, 2 * pause_s))
        began_s, worked_s = time.monotonic(), time.thread_time()
        while time.thread_time() - worked_s < burst_s:
            pass
        took_s = time.monotonic() - began_s
        print(f"{(time.thread_time() - worked_s) * 1e3:.3f} {took_s * 1e3:.3f}", flush=True)


main()
