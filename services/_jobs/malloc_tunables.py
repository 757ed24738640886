"""glibc's malloc as a rank on a processor needs it, and what measures layers and memory for ranks.

A layer's vectors are allocated and freed all the time. By default malloc takes such blocks from its heap once it has
freed one of their size (a threshold that grows, mallopt(3)), between what lasts: holes remain, of which a rank of 38
million parameters had 100 MiB. Above a fixed threshold a block is mapped for itself and given back at once. A mapping
costs a page fault for each 4 KiB, a seventh of a step's processor time, unless the kernel gives huge pages, for which
malloc has to ask (transparent_hugepage/enabled: madvise).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

TUNABLES: Final = "GLIBC_TUNABLES"
"""Read by glibc when a process starts (glibc manual, "Memory Allocation Tunables"); unknown ones are ignored."""
WANTED: Final = {"glibc.malloc.hugetlb": "1", "glibc.malloc.mmap_threshold": str(1 << 20)}
_RESTARTED: Final = "_TURNBUCKLE_RESTARTED"
"""The process that has started again, by its ID: of a Python with file capabilities glibc deletes the tunables at each
start (ld.so(8), "Secure-execution mode"), and it would start again without end."""


def with_tunables(environment: Mapping[str, str]) -> dict[str, str] | None:
    """With our tunables, too; None: they are there already, or the user has an allocator or settings of malloc."""
    given = environment.get(TUNABLES, "")
    others = environment.get("LD_PRELOAD") or any(name.startswith("MALLOC_") for name in environment)
    if others or "glibc.malloc." in given:
        return None
    wanted = ":".join(f"{name}={value}" for name, value in WANTED.items())
    return {**environment, TUNABLES: f"{given}:{wanted}" if given else wanted}


def restart_with_tunables() -> None:
    """Start this program again in the same process, once: what reads the tunables is its start."""
    environment, process = with_tunables(os.environ), str(os.getpid())
    if environment is not None and os.environ.get(_RESTARTED) != process:
        environment[_RESTARTED] = process
        os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606 - our own command line, unchanged
