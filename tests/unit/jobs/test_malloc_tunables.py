"""A rank starts with malloc's settings for large blocks, unless the user has chosen others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from services._jobs.malloc_tunables import TUNABLES, with_tunables

OURS = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1048576"
HOLES = """
import re
from pathlib import Path

def resident_mib():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10

largest = bytearray(16 << 20)
del largest
before = resident_mib()
blocks = [bytearray(2 << 20) for _ in range(40)]
del blocks[::2]
print(resident_mib() - before)
"""
"""Frees a large block, by which glibc by itself learns to keep those of 2 MiB; then of 40 such each second one."""


def test_the_tunables_are_added_once() -> None:
    first = with_tunables({"A": "1"})

    assert first == {"A": "1", TUNABLES: OURS}
    assert with_tunables(first) is None


def test_other_tunables_are_kept() -> None:
    found = with_tunables({TUNABLES: "glibc.cpu.x86_ibt=off"})

    assert found is not None
    assert found[TUNABLES] == f"glibc.cpu.x86_ibt=off:{OURS}"


@pytest.mark.parametrize(
    "chosen",
    [{"LD_PRELOAD": "libjemalloc.so"}, {"MALLOC_ARENA_MAX": "1"}, {TUNABLES: "glibc.malloc.arena_max=1"}],
)
def test_the_user_s_own_allocator_stays(chosen: dict[str, str]) -> None:
    assert with_tunables(chosen) is None


def test_a_rank_starts_again_in_the_same_process_with_the_same_command_line() -> None:
    environment = {key: value for key, value in os.environ.items() if key not in {TUNABLES, "LD_PRELOAD"}}
    program = (
        "import os, sys; from services._jobs.malloc_tunables import restart_with_tunables; "
        "print(os.getpid(), flush=True); restart_with_tunables(); print(os.environ['GLIBC_TUNABLES'], sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "plan.json", "a b"], env=environment, check=True, capture_output=True, text=True
    )

    first, second, end = done.stdout.splitlines()
    assert first == second
    assert end == f"{OURS} ['plan.json', 'a b']"


def test_a_program_that_loses_its_tunables_at_each_start_starts_again_once() -> None:
    """As a Python with file capabilities does (ld.so(8)), which is a privilege that a test does not give it."""
    environment = {key: value for key, value in os.environ.items() if key not in {TUNABLES, "LD_PRELOAD"}}
    program = (
        "import os; os.environ.pop('GLIBC_TUNABLES', None); print('start', flush=True); "
        "from services._jobs.malloc_tunables import restart_with_tunables; restart_with_tunables(); print('work')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True, timeout=60
    )

    assert done.stdout.split() == ["start", "start", "work"]


@pytest.mark.parametrize(("has_tunables", "least_mib", "most_mib"), [(False, 60, 90), (True, 30, 50)])
def test_freed_blocks_go_back_to_the_kernel(has_tunables: bool, least_mib: int, most_mib: int) -> None:
    """Without them all 80 MiB are kept, less what the large block has left; with them 20 blocks of 2 MiB are held."""
    usual = {key: value for key, value in os.environ.items() if key != TUNABLES and not key.startswith("MALLOC_")}
    environment = usual | ({TUNABLES: OURS} if has_tunables else {})
    done = subprocess.run([sys.executable, "-c", HOLES], env=environment, check=True, capture_output=True, text=True)

    assert least_mib <= int(done.stdout) <= most_mib
