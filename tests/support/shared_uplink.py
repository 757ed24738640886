"""Jobs with workers on both sides of one uplink, in virtual time, paced by the product itself: the closed loop.

The link is a fluid: who sends at once gets an equal share, and together a little less than one alone. Jobs compute with
jitter, and now and then an iteration takes much longer. A real `Pacing` reads their counters and pauses them, real
`Iterations` learn from its samples, real decisions follow, and paces come back; only the bus is a delay.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, NamedTuple, cast

from schemas.scheduling import (
    AttemptStart,
    ClusterLink,
    ClusterNode,
    IterationSample,
    Pace,
    ScheduleDecision,
    ScheduleEvent,
    Trigger,
    WorkerChange,
    WorkEvent,
)
from services._runtime.telemetry.logging import get_logger
from services.runner.node_workers import NodeWorkers
from services.runner.pacing import Pacing, PacingSetup
from services.runner.tcp_counters import JobKey, JobTraffic, Processes, Sent
from services.runner.worker import WorkerKey
from services.scheduler.core.entries import decided
from services.scheduler.core.iterations import Iterations
from services.scheduler.core.orders import pace_orders
from services.scheduler.core.state import State, fold
from tests.support.traffic import submitted

NEAR, FAR = "n1", "n2"
"""All ranks 0 are on one node, where they are paced; all ranks 1 beyond the uplink."""
EPOCH_NS: Final = 1_700_000_000 * 10**9
NOMINAL_BITS_PER_S: Final = 100_000_000
GOODPUT_BYTES_PER_S: Final = 95_000_000 / 8
"""Of 100 Mbit/s, as `tests.bench.interleave.plan` has it."""
_TINY_S: Final = 1e-9
_TICK_NS: Final = 4_000_000
"""What the kernel's times are multiples of (CONFIG_HZ=250)."""
_COLLECTIVE_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Demand:
    """One job: it computes, then it sends."""

    compute_s: float
    sent_bytes: int
    starts_s: float = 0.0

    @property
    def alone_s(self) -> float:
        """Its iteration without jitter where the link is its own."""
        return self.compute_s + self.sent_bytes / GOODPUT_BYTES_PER_S


@dataclass(frozen=True, slots=True)
class Noise:
    """What is not as it should be."""

    jitter: float = 0.015
    """Standard deviation of an iteration's computing, as a share of the iteration."""
    hiccup_every: int = 20
    """Of so many iterations one takes longer; 0: none."""
    hiccup: tuple[float, float] = (0.1, 0.8)
    """By this share of an iteration, from and to."""
    collision: float = 1.1
    """So much slower jobs send together than one alone."""
    absorbs_s: float = 0.0
    """Of each pause: so much computation goes on in it."""
    sample_delay_s: tuple[float, float] = (0.005, 0.06)
    decision_delay_s: tuple[float, float] = (0.06, 0.2)
    order_delay_s: tuple[float, float] = (0.005, 0.1)


class Done(NamedTuple):
    """An iteration: when it ended, how long it was, and how long it would have been alone."""

    end_s: float
    length_s: float
    alone_s: float


class UplinkJob:
    """A job on the link; to `Pacing` it is its worker of rank 0."""

    started = True
    pid = 1

    def __init__(self, name: str, demand: Demand, noise: Noise, draws: random.Random, *, interleave: bool) -> None:
        self.key = WorkerKey(name, 1, 0)
        self.intent = _Intent(interleave=interleave)
        self.demand = demand
        self.sent_bytes = 0.0
        self.left_bytes = 0.0
        self.left_s = demand.starts_s
        self.iterations: list[Done] = []
        self.paused_s = 0.0
        self.busy_s = 0.0
        """For so long it has sent."""
        self.sent_s = 0.0
        """When it did last."""
        self._noise, self._draws = noise, draws
        self._frozen_s: float | None = None
        self._begin_s = 0.0
        self._alone_s = 0.0
        self._next_s = 0.0
        self.now: Callable[[], float] = lambda: 0.0
        self.is_first = True

    def process_ids(self) -> list[int]:
        """Nobody looks at them."""
        return []

    def pause(self, _until_s: float) -> bool:
        """Stop, until `thaw`."""
        if self._frozen_s is None:
            self._frozen_s = self.now()
        return True

    def thaw(self) -> None:
        """Go on."""
        if self._frozen_s is not None:
            lasted_s, self._frozen_s = self.now() - self._frozen_s, None
            self.paused_s += lasted_s
            if not self.left_bytes:
                self.left_s = max(_TINY_S, self.left_s - min(lasted_s, self._noise.absorbs_s))

    @property
    def is_sending(self) -> bool:
        """Whether it takes a part of the link."""
        return self.left_bytes > 0 and self._frozen_s is None

    @property
    def is_computing(self) -> bool:
        """Whether its computing goes on."""
        return self.left_bytes <= 0 and self._frozen_s is None

    def compute(self, seconds: float, now_s: float) -> None:
        """Go on computing until `now_s`; then send."""
        self.left_s -= seconds
        if self.left_s <= _TINY_S:
            self.left_bytes = float(self.demand.sent_bytes)
            if self.is_first:
                self._begin_s, self.is_first = now_s - self._computing_s(), False

    def send(self, size: float, now_s: float) -> None:
        """So much has been sent by `now_s`."""
        self.sent_bytes += size
        self.sent_s = now_s
        self.left_bytes -= size
        if self.left_bytes > 1.0:
            return
        self.sent_bytes += self.left_bytes
        self.left_bytes = 0.0
        alone_s = self._alone_s + self.demand.sent_bytes / GOODPUT_BYTES_PER_S
        self.iterations.append(Done(now_s, now_s - self._begin_s, alone_s))
        self._begin_s, self.left_s = now_s, self._computing_s()

    def _computing_s(self) -> float:
        whole_s = self.demand.alone_s
        extra_s = whole_s * self._noise.jitter * self._draws.gauss(0.0, 1.0)
        if self._noise.hiccup_every and self._draws.random() < 1 / self._noise.hiccup_every:
            extra_s += whole_s * self._draws.uniform(*self._noise.hiccup)
        self._alone_s = max(0.01, self.demand.compute_s + extra_s)
        return self._alone_s


@dataclass(frozen=True, slots=True)
class _Intent:
    interleave: bool
    spread: bool = True


@dataclass(order=True, slots=True)
class _Message:
    at_s: float
    number: int
    deliver: Callable[[], None] = field(compare=False)


class SharedUplink:
    """The link, its jobs, the runner that paces them and the scheduler that tells it when."""

    def __init__(
        self, demands: Iterable[Demand], seed: int, noise: Noise, *, interleave: bool = True, timed: bool = True
    ) -> None:
        """Put jobs on the link.

        Args:
            demands: of each job.
            seed: of all draws.
            noise: what is not as it should be.
            interleave: whether jobs may be paused.
            timed: whether the kernel tells when something was sent, as it does since Linux 4.19.
        """
        self.now_s = 0.0
        self.jobs = [
            UplinkJob(f"j{number}", demand, noise, random.Random(seed * 1_000 + number), interleave=interleave)
            for number, demand in enumerate(demands)
        ]
        for job in self.jobs:
            job.now = lambda: self.now_s
        self.overlap_s = self.busy_s = 0.0
        self._noise, self._draws = noise, random.Random(seed)
        self._messages: list[_Message] = []
        self._numbers = count()
        setup = PacingSetup(NEAR, _COLLECTIVE_TIMEOUT_S, self._publish)
        self._pacing = Pacing(setup, cast("NodeWorkers", _Workers(self.jobs)), _Clock(self), get_logger("pacing"))
        self._pacing._traffic = cast("JobTraffic", _Counters(self.jobs, timed=timed))
        self._due_s = 0.0
        self.turns = 0
        """Of the runner: how often its timer woke it."""
        self.samples = 0
        """That it published."""
        names = [job.key.job for job in self.jobs]
        begun = ScheduleEvent(leader="s", time_ns=EPOCH_NS, worked=_started(names))
        self.state = fold(State(), [_log(names, interleave=interleave), begun])
        self.scheduler = Iterations()
        self.paces: dict[str, Pace | None] = {}
        self.orders = 0
        self.shifted_s: float | None = None
        """When shifts were decided first."""
        self._is_deciding = False

    # -- time ------------------------------------------------------------------------------------------------------

    def run(self, iterations: int, each: Callable[[float], None] = lambda _: None) -> None:
        """Until every job has had so many iterations; `each` is told the time, a few times per iteration."""
        while any(len(job.iterations) < iterations for job in self.jobs):
            self._do_next()
            each(self.now_s)

    def run_for(self, seconds: float) -> None:
        """Until so much later."""
        until_s = self.now_s + seconds
        while min([self._due_s, *(each.at_s for each in self._messages[:1])]) < until_s:
            self._do_next()
        self._advance(until_s)

    def _do_next(self) -> None:
        """The next message, or turn of the runner."""
        if self._messages and self._messages[0].at_s <= self._due_s:
            message = heapq.heappop(self._messages)
            self._advance(message.at_s)
            message.deliver()
        else:
            self._advance(self._due_s)
            self.turns += 1
            self._pacing._turn(self._time_ns())
            self._set_timer()

    def _set_timer(self) -> None:
        """As `Pacing` does, on an event loop."""
        self._due_s = max(self.now_s, (self._pacing.next_turn_ns() - EPOCH_NS) / 1e9)

    def _time_ns(self) -> int:
        return EPOCH_NS + round(self.now_s * 1e9)

    def _advance(self, until_s: float) -> None:
        while self.now_s < until_s - _TINY_S:
            sending = [job for job in self.jobs if job.is_sending]
            computing = [job for job in self.jobs if job.is_computing]
            slower = self._noise.collision if len(sending) > 1 else 1.0
            rate = GOODPUT_BYTES_PER_S / slower / max(1, len(sending))
            ends = [until_s - self.now_s, *(job.left_s for job in computing)]
            ends += [job.left_bytes / rate for job in sending]
            step_s = max(_TINY_S, min(ends))
            self.now_s += step_s
            self.busy_s += step_s if sending else 0.0
            self.overlap_s += step_s if len(sending) > 1 else 0.0
            for job in computing:
                job.compute(step_s, self.now_s)
            for job in sending:
                job.busy_s += step_s
                job.send(min(job.left_bytes, step_s * rate), self.now_s)
        self.now_s = max(self.now_s, until_s)

    def _after(self, delay_s: tuple[float, float], deliver: Callable[[], None]) -> None:
        at_s = self.now_s + self._draws.uniform(*delay_s)
        heapq.heappush(self._messages, _Message(at_s, next(self._numbers), deliver))

    # -- the bus -----------------------------------------------------------------------------------------------------

    def _publish(self, sample: IterationSample) -> None:
        self.samples += 1
        self._after(self._noise.sample_delay_s, lambda: self._on_sample(sample))

    def _on_sample(self, sample: IterationSample) -> None:
        self.scheduler.add(self.state, sample.node, sample, self.now_s)
        if self.scheduler.has_profiles and not self._is_deciding:
            self._is_deciding = True
            self._after(self._noise.decision_delay_s, self._decide)
        if self.scheduler.has_new_paces:
            self._order()

    def _decide(self) -> None:
        self._is_deciding = False
        profiles = self.scheduler.take_profiles(self.state)
        event = ScheduleEvent(leader="s", time_ns=self._time_ns(), profiles=profiles)
        entry, _ = decided(self.state, event, "index")
        self.state = fold(self.state, [entry])
        if self.shifted_s is None and self.state.traffic.shifts:
            self.shifted_s = self.now_s
        self._order()

    def _order(self) -> None:
        paces = self.scheduler.paces(self.state)
        for order in pace_orders(self.state, paces):
            if self.paces.get(order.job, "never") != order.pace:
                self.paces[order.job] = order.pace
                self.orders += 1
                self._after(self._noise.order_delay_s, lambda order=order: self._obey(order.job))  # type: ignore[misc]

    def _obey(self, job: str) -> None:
        self._pacing.pace(JobKey(job, 1), self.paces[job])
        self._set_timer()


class _Clock:
    def __init__(self, link: SharedUplink) -> None:
        self._link = link

    def monotonic(self) -> float:
        return self._link.now_s

    def monotonic_ns(self) -> int:
        return round(self._link.now_s * 1e9)

    def time_ns(self) -> int:
        return self._link._time_ns()

    async def sleep_until(self, deadline: float) -> None:
        raise NotImplementedError


class _Workers:
    """What `Pacing` asks of `NodeWorkers`."""

    def __init__(self, jobs: list[UplinkJob]) -> None:
        self._jobs = {job.key.job: job for job in jobs}

    def living(self) -> list[UplinkJob]:
        return list(self._jobs.values())

    def find(self, job: str, _attempt: int, _rank: int) -> UplinkJob:
        return self._jobs[job]


class _Counters:
    """What it asks of `JobTraffic`."""

    def __init__(self, jobs: list[UplinkJob], *, timed: bool) -> None:
        self._jobs = {JobKey(job.key.job, 1): job for job in jobs}
        self._timed = timed
        self._busy_ns = dict.fromkeys(self._jobs, 0)

    def find(self, jobs: Mapping[JobKey, Iterable[Processes]]) -> None:
        pass

    def has_connections(self, key: JobKey) -> bool:
        return True

    def read(self, keys: Iterable[JobKey]) -> dict[JobKey, Sent]:
        return {key: self._sent(key, self._jobs[key]) for key in keys}

    def _sent(self, key: JobKey, job: UplinkJob) -> Sent:
        if not self._timed:
            return Sent(int(job.sent_bytes), 0, "reno")
        before, self._busy_ns[key] = self._busy_ns[key], round(job.busy_s * 1e9) // _TICK_NS * _TICK_NS
        quiet_ns = round((job.now() - job.sent_s) * 1e9) // _TICK_NS * _TICK_NS
        return Sent(int(job.sent_bytes), 0, "reno", self._busy_ns[key] - before, quiet_ns)


def _log(names: list[str], **network: Any) -> ScheduleEvent:
    """Two nodes, the link between them, and the jobs that run across it."""
    starts = tuple(AttemptStart(job=name, attempt=1, nodes=(NEAR, FAR)) for name in names)
    return ScheduleEvent(
        leader="s",
        time_ns=EPOCH_NS,
        nodes=tuple(ClusterNode(node=node, slots=len(names), rack=node) for node in (NEAR, FAR)),
        links=(ClusterLink(link="up", bits_per_s=NOMINAL_BITS_PER_S, nodes=(NEAR,)),),
        submitted=tuple(submitted(name, **network) for name in names),
        decision=ScheduleDecision(trigger=Trigger.SUBMITTED, policy="index", starts=starts),
    )


def _started(names: Iterable[str]) -> tuple[WorkEvent, ...]:
    """All workers of these jobs."""
    return tuple(
        WorkEvent(job=name, attempt=1, rank=rank, node=node, change=WorkerChange.STARTED, time_ns=EPOCH_NS)
        for name in names
        for rank, node in enumerate((NEAR, FAR))
    )


def slowdown(link: SharedUplink, first: int, last: int | None = None) -> float:
    """Mean iteration over that of the same jobs alone, of iterations `first` to `last` of all jobs."""
    found = [done for job in link.jobs for done in job.iterations[first:last]]
    return sum(done.length_s for done in found) / sum(done.alone_s for done in found)
