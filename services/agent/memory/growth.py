"""How much memory a container that grows is granted: the rule of the agent and of its watchdog (thesis 2.3.2).

    free   = limit - usage
    near   : free < max(min(32 MiB, limit / 8), rate x 60 ms)
    target = usage + max(2 x near, rate x 100 ms), at most container_max
    spare  = up to a quarter of the reserve on top, where growth at its fastest would take it within 100 ms

    While no agent lives, its watchdog polls, without thresholds, so each container is granted free memory first:
    level  : the free memory that the least free are brought to, at most 256 MiB, out of half of the reserve
    poll   : again after free / (2 x 4 GB/s), within 2 to 25 ms: growth takes at most half of free meanwhile

Pure, and the standard library only, because the watchdog knows nothing else. Rates are bytes per second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

PAGE_BYTES: Final = 4096
MIB: Final = 1 << 20
NEAR_BYTES: Final = 32 * MIB
NEAR_SHARE: Final = 8
MARGIN_BYTES: Final = 4 * MIB
"""Version 2: memory.max stays so far above memory.current: below it the kernel kills, though the write succeeds."""
NEAR_S: Final = 0.06
AHEAD_S: Final = 0.1
MAX_RATE: Final = float(64 << 30)
"""No machine touches memory faster: a reading beyond it is an error of the clock."""
SPAN_NS: Final = 1_000_000
"""Readings closer together than this give no rate."""
HALF_LIFE_S: Final = 0.05
"""Of what a rate is made of."""
SPARE_SHARE: Final = 4
"""Part of a reserve that is granted for what is not believed yet: the agent may be woken late."""
INITIAL_FREE_BYTES: Final = 256 * MIB
"""What 2 GB/s take in 0.13 s."""
INITIAL_SHARE: Final = 2
"""Part of a reserve that is granted before any growth is seen; the rest is for containers that grow."""
FAST_RATE: Final = 4e9
"""Faster than one processor fills pages of 4 KiB (1 to 2.5 GB/s measured)."""
LEAST_POLL_S: Final = 0.002
MOST_POLL_S: Final = 0.025


def high_margin_bytes(limit_bytes: int) -> int:
    """Version 2: how far memory.high stays below memory.max under OOM control, an eighth, at least 4, at most 32 MiB.

    The kernel notifies at most every 10 ms: three times what 1 GB/s charges until the agent can act.
    """
    return max(MARGIN_BYTES, min(NEAR_BYTES, limit_bytes // NEAR_SHARE // PAGE_BYTES * PAGE_BYTES))


class MemoryLevel(Protocol):
    """Usage and limit of one moment."""

    @property
    def usage_bytes(self) -> int:
        """What is charged."""

    @property
    def limit_bytes(self) -> int:
        """Negative: none."""

    @property
    def paused(self) -> bool:
        """Tasks wait at the limit."""


class Need(NamedTuple):
    """What a container wants."""

    added_bytes: int
    """On top of its limit, whole pages; 0: nothing."""
    capped: bool
    """Its greatest limit stands in the way of more."""


NO_NEED: Final = Need(0, capped=False)


def near_bytes(limit_bytes: int, rate: float) -> int:
    """Free memory below which a container is near its limit; limit not below 0."""
    return max(min(NEAR_BYTES, limit_bytes // NEAR_SHARE), int(rate * NEAR_S))


def need_of(level: MemoryLevel, rate: float, max_bytes: int, fastest: float = 0.0, reserve_bytes: int = 0) -> Need:
    """What is to be added to the limit now.

    Args:
        level: usage and limit of one moment.
        rate: growth, as it is believed to go on.
        max_bytes: greatest limit of a container of this application.
        fastest: growth, as it would go on at worst.
        reserve_bytes: what can be granted at once.
    """
    limit = level.limit_bytes
    if limit < 0:
        return NO_NEED
    near = near_bytes(limit, rate)
    if limit - level.usage_bytes >= near and not level.paused:
        return NO_NEED
    target = level.usage_bytes + max(2 * near, int(rate * AHEAD_S), PAGE_BYTES)
    at_worst = level.usage_bytes + int(fastest * AHEAD_S)
    target = max(target, min(at_worst, target + reserve_bytes // SPARE_SHARE))
    target = -(-target // PAGE_BYTES) * PAGE_BYTES
    allowed = min(target, max_bytes // PAGE_BYTES * PAGE_BYTES)
    return Need(max(allowed - limit, 0), capped=target > max(allowed, limit))


@dataclass(slots=True)
class Growth:
    """How fast a container's usage grows, from successive readings."""

    usage_bytes: int = 0
    read_ns: int | None = None
    rate: float = 0.0
    """Bytes per second: the mean over the past, weighted by 0.5^(age / HALF_LIFE_S); never negative."""
    fastest: float = 0.0
    """The latest, or what is left of a faster one."""

    def read(self, usage_bytes: int, now_ns: int) -> float:
        """Take a reading; returns the rate. One that comes too soon after the last, or doubled, changes nothing.

        What has only begun is not taken to last: a process that starts takes 10 MiB within 5 ms and then no more.
        `rate` x AHEAD_S is at first about what has come already, and all of it once growth has lasted.
        """
        if self.read_ns is None:
            self.usage_bytes, self.read_ns = usage_bytes, now_ns
        elif now_ns - self.read_ns >= SPAN_NS:
            elapsed_s = (now_ns - self.read_ns) / 1e9
            latest = min(max(usage_bytes - self.usage_bytes, 0) / elapsed_s, MAX_RATE)
            kept = 0.5 ** min(elapsed_s / HALF_LIFE_S, 60.0)
            self.rate = self.rate * kept + latest * (1 - kept)
            self.fastest = max(latest, self.fastest * kept)
            self.usage_bytes, self.read_ns = usage_bytes, now_ns
        return self.rate


class FreeMemory(NamedTuple):
    """What a container can use before it is read again."""

    free_bytes: int
    """Limit minus what cannot be reclaimed."""
    most_added_bytes: int
    """Up to its greatest limit."""


def initial_grants(containers: Sequence[FreeMemory], reserve_bytes: int) -> list[int]:
    """What to add to the limits of one application's containers on this node, whole pages, in the given order.

    Max-min fair: the least free are brought to one level, at most `INITIAL_FREE_BYTES`; none beyond its greatest limit.
    """
    budget_bytes = max(reserve_bytes, 0) // INITIAL_SHARE

    def added(level_bytes: int) -> list[int]:
        return [max(min(level_bytes - container.free_bytes, container.most_added_bytes), 0) for container in containers]

    least, most = 0, INITIAL_FREE_BYTES // PAGE_BYTES
    while least < most:
        middle = (least + most + 1) // 2
        if sum(added(middle * PAGE_BYTES)) <= budget_bytes:
            least = middle
        else:
            most = middle - 1
    return [size // PAGE_BYTES * PAGE_BYTES for size in added(least * PAGE_BYTES)]


def next_poll_s(free_bytes: int) -> float:
    """After how long a container with so much free memory is to be read again, seconds."""
    return min(max(free_bytes / (2 * FAST_RATE), LEAST_POLL_S), MOST_POLL_S)
