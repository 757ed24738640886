"""Jobs on one uplink whose congestion control is MLTCP or Reno, round trip by round trip, in virtual time.

A link of 100 Mbit/s with a short queue, as `turnbuckle up --racks` makes it. Windows grow by RFC 5681: slow start, one
segment per round trip behind the threshold (times F with MLTCP, by the kernel program's own arithmetic), half of it
after a loss, and the first window after an idle time of a retransmission timeout. A full queue drops segments of a
connection in proportion to its share of them, of one at least. Not simulated: timeouts, delayed acknowledgements, and
the processors of the hosts.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.support.mltcp_iteration import LearnedFlow

RATE_BYTES_PER_S: Final = 95_000_000 / 8
"""Payload of 100 Mbit/s, as `tests.bench.interleave.plan` has it."""
SEGMENT_BYTES: Final = 1_448
QUEUE_BYTES: Final = 46_000
BASE_RTT_S: Final = 0.0005
"""Of an empty queue."""
FIRST_WINDOW: Final = 10.0
"""Segments (RFC 6928); also after an idle time."""
IDLE_S: Final = 0.2
"""TCP_RTO_MIN: after such a pause the window is the first one again (RFC 2861)."""
_EPOCH_S: Final = 1_000.0
"""The program takes 0 for no time."""
_NS: Final = 1e9
_REORDERED: Final = 3
"""Segments that a loss costs at least: what is sent until the third duplicate acknowledgement."""


@dataclass(frozen=True, slots=True)
class Congestion:
    """How windows grow."""

    scaled: bool = True
    """False: Reno."""
    factors: tuple[float, float] | None = None
    """Slope and intercept of F; None: those of the program."""


RENO: Final = Congestion(scaled=False)
MLTCP: Final = Congestion()


@dataclass(frozen=True, slots=True)
class Work:
    """One job: it computes, then it sends tensors one after another."""

    compute_s: float
    tensors: tuple[int, ...]
    """Bytes of each."""
    starts_s: float = 0.0
    """Before its first iteration: a rendezvous."""
    between_s: float = 0.015
    """From one tensor to the next."""

    @property
    def alone_s(self) -> float:
        """Its iteration where the link is its own, and always full."""
        return self.compute_s + sum(self.tensors) / RATE_BYTES_PER_S + self.between_s * (len(self.tensors) - 1)


@dataclass(slots=True)
class Sender:
    """A job's connection."""

    work: Work
    flow: LearnedFlow
    draws: random.Random
    jitter: float
    wakes_s: float
    left: list[int] = field(default_factory=list)
    """Bytes of the tensors that are not sent yet."""
    sent_bytes: int = 0
    window: float = FIRST_WINDOW
    threshold: float = float("inf")
    growth: float = 0.0
    """Segments that are acknowledged and have not been scaled yet, as the program takes whole ones."""
    quiet_since_s: float = 0.0
    begun_s: float = 0.0
    iterations_s: list[float] = field(default_factory=list)
    """Their lengths."""

    def is_sending(self, now_s: float) -> bool:
        """Whether it has something to send; a pause that is over ends here."""
        if now_s < self.wakes_s:
            return False
        if not self.left:
            self.left = list(self.work.tensors)
        if self.quiet_since_s >= 0.0:
            pause_s, self.quiet_since_s = now_s - self.quiet_since_s, -1.0
            self.flow.resume(round((now_s + _EPOCH_S) * _NS), round(pause_s * _NS), self.sent_bytes)
            if pause_s > IDLE_S:  # tcp_cwnd_restart(): the threshold remembers three quarters of the window
                known = 0.0 if self.threshold == float("inf") else self.threshold
                self.threshold = max(known, 0.75 * self.window)
                self.window = min(self.window, FIRST_WINDOW)
        return True

    def acknowledged(self, size: int, now_s: float, congestion: Congestion) -> None:
        """So many bytes arrived in this round trip: send on, or compute."""
        self.sent_bytes += size
        self.left[0] -= size
        self._grow(size / SEGMENT_BYTES, congestion)
        if self.left[0] > 0:
            self.flow.leave(self.sent_bytes)
            return
        self.left.pop(0)
        self.quiet_since_s = now_s
        if self.left:
            self.wakes_s = now_s + self.work.between_s
            return
        self.iterations_s.append(now_s - self.begun_s)
        self.begun_s = now_s
        self.wakes_s = now_s + self.work.compute_s + self.work.alone_s * self.draws.gauss(0.0, self.jitter)

    def _grow(self, segments: float, congestion: Congestion) -> None:
        if self.window < self.threshold:
            self.window += segments
            return
        self.growth += segments
        whole, self.growth = divmod(self.growth, 1.0)
        grown = self.flow.scaled(int(whole), self.sent_bytes, congestion.factors) if congestion.scaled else int(whole)
        self.window += grown / self.window

    def lose(self) -> None:
        """Segments were dropped (fast recovery)."""
        self.threshold = self.window = max(2.0, self.window / 2)
        self.growth = 0.0


class MltcpUplink:
    """The link and its jobs; `stream`: beside them a connection that sends all the time."""

    def __init__(
        self,
        library: ctypes.CDLL,
        jobs: Sequence[Work],
        seed: int,
        congestion: Congestion = MLTCP,
        *,
        jitter: float = 0.005,
        stream: bool = False,
    ) -> None:
        """Put jobs on the link.

        Args:
            library: of `build_library`.
            jobs: what each does.
            seed: of all draws.
            congestion: of all connections.
            jitter: standard deviation of an iteration's computing, as a share of the iteration.
            stream: whether a connection without a pause is beside them.
        """
        self.now_s = 0.0
        self._congestion = congestion
        self._draws = random.Random(seed)
        whole = [*jobs, Work(0.0, (1 << 50,))] if stream else list(jobs)
        draws = [random.Random(seed * 1_000 + number) for number in range(len(whole))]
        senders = [
            Sender(work, LearnedFlow(library), own, jitter, work.starts_s + work.compute_s, begun_s=work.starts_s)
            for work, own in zip(whole, draws, strict=True)
        ]
        self.jobs = senders[: len(jobs)]
        self.stream = senders[-1] if stream else None
        self._senders = senders

    def run(self, iterations: int) -> None:
        """Until each job has had so many iterations."""
        while any(len(job.iterations_s) < iterations for job in self.jobs):
            self._round_trip()

    def _round_trip(self) -> None:
        active = [sender for sender in self._senders if sender.is_sending(self.now_s)]
        if not active:
            self.now_s = max(self.now_s + 1e-9, min(sender.wakes_s for sender in self._senders))
            return
        flights = [min(sender.left[0], max(1, int(sender.window)) * SEGMENT_BYTES) for sender in active]
        total = sum(flights)
        trip_s = max(BASE_RTT_S, total / RATE_BYTES_PER_S)
        self.now_s += trip_s
        dropped = total - QUEUE_BYTES - BASE_RTT_S * RATE_BYTES_PER_S
        unlucky = self._draws.choices(range(len(active)), flights) if dropped > 0 else []
        for number, (sender, flight) in enumerate(zip(active, flights, strict=True)):
            share = flight / total  # each of the dropped segments is its own with this probability
            segments = max(1, int(dropped / SEGMENT_BYTES))
            hit = dropped > 0 and (number in unlucky or self._draws.random() < 1 - (1 - share) ** segments)
            lost = min(flight - 1, SEGMENT_BYTES * max(_REORDERED, round(share * segments))) if hit else 0
            sender.acknowledged(flight - max(0, lost), self.now_s, self._congestion)
            if hit:
                sender.lose()

    def slowdown(self, first: int, alone_s: Sequence[float] | None = None) -> float:
        """Mean iteration, from the given one on, over those alone: as measured, or without any loss (None)."""
        base_s = alone_s or [job.work.alone_s for job in self.jobs]
        pairs = zip(self.jobs, base_s, strict=True)
        found = [length / base for job, base in pairs for length in job.iterations_s[first:]]
        return sum(found) / len(found)


def alone_s(library: ctypes.CDLL, job: Work, seed: int, iterations: int = 12) -> float:
    """The mean iteration of a job that has the link for itself; the first ones, which begin it, are left out."""
    link = MltcpUplink(library, [job], seed, RENO)
    link.run(iterations)
    lengths = link.jobs[0].iterations_s[2:]
    return sum(lengths) / len(lengths)
