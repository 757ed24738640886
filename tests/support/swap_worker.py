"""A process that needs more memory than its control group has: it writes pages, and checks that it reads the same.

``python -S -P swap_worker.py CGROUP MIB``: joins the control group, then answers each line: ``write SEED`` fills every
page, ``check`` reads all of them, ``read SEED SECONDS`` reads pages at random for so long. Standard library only: the
interpreter has to fit beside the pages.
"""

import json
import mmap
import os
import sys
import time

PAGE = 4096


def page(seed: int, number: int) -> bytes:
    """The page's content: no two are the same, and none compresses to one value."""
    return (seed * 1_000_003 + number).to_bytes(8, "little") * (PAGE // 8)


def drawn(state: int) -> int:
    """The next state of a linear congruential generator (Knuth's MMIX); `random` would take memory of the pages."""
    return (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % (1 << 64)


def read_at_random(memory: mmap.mmap, pages: int, seed: int, state: int, seconds: float) -> tuple[int, int]:
    """Pages read, and how many of them were not as written."""
    read, corrupt, ends_s = 0, 0, time.monotonic() + seconds
    while time.monotonic() < ends_s:
        state = drawn(state)
        number = (state >> 32) % pages
        corrupt += memory[number * PAGE : (number + 1) * PAGE] != page(seed, number)
        read += 1
    return read, corrupt


def main() -> None:
    group, mib = sys.argv[1], int(sys.argv[2])
    with open(f"{group}/cgroup.procs", "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib is some MiB
        file.write(str(os.getpid()))
    memory = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages, seed = (mib << 20) // PAGE, 0
    for line in sys.stdin:
        read, corrupt = pages, 0
        if line.startswith("write "):
            seed = int(line.split()[1])
            for number in range(pages):
                memory[number * PAGE : (number + 1) * PAGE] = page(seed, number)
        elif line.startswith("read "):
            read, corrupt = read_at_random(memory, pages, seed, int(line.split()[1]), float(line.split()[2]))
        else:
            for number in range(pages):
                corrupt += memory[number * PAGE : (number + 1) * PAGE] != page(seed, number)
        print(json.dumps({"pages": read, "corrupt": corrupt}), flush=True)  # noqa: T201 - its answer


if __name__ == "__main__":
    main()
