"""What the kernel's counters of a memory limit mean: hits, after which system calls may have failed, and kills."""

from __future__ import annotations

from services.agent.memory.policy import DECREASE_MARGIN_BYTES, ContainerMemory
from services.agent.memory.records import mib
from services.agent.ports import ContainerHandle, MemoryState


def start_counting(container: ContainerMemory, handle: ContainerHandle) -> None:
    """What the kernel counted before OOM control began is not reported."""
    if (state := handle.read_memory()) is not None:
        container.limit_hits.counter = state.limit_hits


def limit_hits_of(container: ContainerMemory, state: MemoryState, handle: ContainerHandle, now_ns: int) -> int:
    """How many hits are to be reported now; 0 also where there is page cache, which the kernel drops instead."""
    expected = state.paused or bool(container.killer_reason)
    hits = container.limit_hits.read(state.limit_hits, now_ns, expected=expected)
    return hits if hits and handle.read_reclaimable() < DECREASE_MARGIN_BYTES else 0


def describe_limit_hits(state: MemoryState, hits: int) -> str:
    """Their possible effects: the kernel counts those, too, after which reclaim made room."""
    times = "once" if hits == 1 else f"{hits} times"
    return (
        f"usage {mib(state.usage_bytes)} of {mib(state.limit_bytes)}: the kernel hit the limit {times}; calls such as "
        "read, fork and writes to tmpfs can have failed with EFAULT or ENOMEM"
    )


def kill_reason(container: ContainerMemory, state: MemoryState, *, is_controlled: bool) -> str:
    """Why nothing could be done about a kill that was not left to the kernel."""
    if not is_controlled:
        return f"its memory is not guarded: no limit update for it was received; its limit is {mib(state.limit_bytes)}"
    rate = mib(container.growth.rate)
    return f"although guarded: it grew by {rate}/s when last seen, or a group above or the host is full"
