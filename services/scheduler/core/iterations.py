"""What samples say of jobs' iterations: their traffic profiles, and when each has its turn. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from schemas.scheduling import IterationSample, Pace, TrafficProfile
from services.scheduler.core.interleaving.all_links import Shared
from services.scheduler.core.interleaving.learning import (
    CHANGED_BY,
    KEPT,
    REFINED_BY,
    Measured,
    is_other,
    is_plausible,
    measured,
    profiled,
)
from services.scheduler.core.interleaving.plan import slowed_by_links
from services.scheduler.core.interleaving.traffic import NO_TRAFFIC, Traffic
from services.scheduler.core.interleaving.turns import Turns
from services.scheduler.core.live import Live
from services.scheduler.core.shared_links import Sharing, profile_of, sharing
from services.scheduler.core.state import State

LEARNED_EVERY_S: Final = 10.0
"""A job's profile, at most."""
PAYLOAD: Final = 0.92
"""Of a link's rate: the rest is headers, acknowledgements of the other direction, and what is sent again."""
FULL_LINK: Final = 0.8
"""Of a link's rate: where jobs send as much together, each sends less than it would alone."""
MOST_RANKS: Final = 16
"""Of a job, of which samples are kept."""


class SampleResult(StrEnum):
    """What a sample is."""

    TAKEN = "taken"
    OLD = "old"
    """Of another attempt, or of a job that does not run."""
    FORGED = "forged"
    """By a node where that worker was not placed."""
    GARBAGE = "garbage"
    """No iteration can be so."""


@dataclass(slots=True)
class Iterations:
    """Samples of the jobs that run, and what follows from them."""

    has_new_paces: bool = False
    """Whether `paces` has changed by a sample since it was asked for last."""
    _samples: dict[str, dict[int, deque[IterationSample]]] = field(default_factory=dict)
    """By job and rank, the latest of its attempt."""
    _latest_begin_ns: dict[str, int] = field(default_factory=dict)
    """When the iteration of a job's latest sample began, of rank 0."""
    _passed_on_s: dict[str, float] = field(default_factory=dict)
    """When a job's profile was passed on last."""
    _refined: dict[str, int] = field(default_factory=dict)
    """The attempt of which a job's profile was compared with one of `KEPT` samples."""
    _ready: dict[str, TrafficProfile] = field(default_factory=dict)
    _turns: Turns = field(default_factory=Turns)
    _state: State | None = None
    _traffic: Traffic = NO_TRAFFIC
    _sharing: Sharing = field(default_factory=lambda: Sharing({}, {}))

    def add(self, state: State, node: str, sample: IterationSample, now_s: float) -> SampleResult:
        """One sample; `ready` and `paces` may have changed if it is taken.

        Args:
            state: of all jobs.
            node: that may publish on its subject.
            sample: which names a node, too.
            now_s: of any clock that does not run backwards.
        """
        live = state.live.get(sample.job)
        if live is None or not live.workers or live.stopping or live.attempt != sample.attempt:
            return SampleResult.OLD
        if sample.node != node or live.job.nodes[sample.rank : sample.rank + 1] != (node,):
            return SampleResult.FORGED
        if not is_plausible(sample):
            return SampleResult.GARBAGE
        self._follow(state)
        if sample.rank == 0 and self._turns.add(sample):
            self.has_new_paces = True
        repeated = bool(sample.due_ns) and self._latest_begin_ns.get(sample.job) == sample.time_ns
        if sample.rank == 0:
            self._latest_begin_ns[sample.job] = sample.time_ns
        if repeated:
            return SampleResult.TAKEN  # it is known, but for that
        ranks = self._samples.setdefault(sample.job, {})
        if sample.rank in ranks or len(ranks) < MOST_RANKS:
            latest = ranks.setdefault(sample.rank, deque(maxlen=KEPT))
            if latest and latest[-1].attempt != sample.attempt:
                latest.clear()
            latest.append(sample)
        self._learn(live, now_s)
        return SampleResult.TAKEN

    @property
    def has_profiles(self) -> bool:
        """Whether `take_profiles` has any."""
        return bool(self._ready)

    def take_profiles(self, state: State) -> tuple[TrafficProfile, ...]:
        """Profiles that the log should know, of attempts that still run."""
        ready, self._ready = self._ready, {}
        return tuple(
            ready[job] for job in sorted(ready) if job in state.live and state.live[job].attempt == ready[job].attempt
        )

    def paces(self, state: State) -> Mapping[str, Pace]:
        """When each shifted job is to begin to send, as far as that is known."""
        self._follow(state)
        self.has_new_paces = False
        return self._turns.paces()

    def _follow(self, state: State) -> None:
        """The log goes on: jobs end, shifts change."""
        if state is self._state:
            return
        self._state, self._sharing = state, sharing(state)
        running = {name for name, live in state.live.items() if live.workers}
        for job in self._latest_begin_ns.keys() - running:
            del self._latest_begin_ns[job]
        for job in self._samples.keys() - running:
            del self._samples[job]
            self._passed_on_s.pop(job, None)
            self._refined.pop(job, None)
        if state.traffic is not self._traffic:
            before, self._traffic = self._traffic, state.traffic
            latest = {job: ranks[0][-1] for job, ranks in self._samples.items() if ranks.get(0)}
            current = {job: each for job, each in latest.items() if each.attempt == state.live[job].attempt}
            profiles = slowed_by_links(self._sharing.links, self._sharing.sharers)
            self._turns.planned(state.traffic.shifts, state.traffic.scores, profiles, current)
            for job in state.traffic.shifts.keys() - before.shifts.keys():
                self._samples.pop(job, None)  # how it sends beside others says little of when they take turns

    def _learn(self, live: Live, now_s: float) -> None:
        """A job's profile, where it is new and the last one was passed on long enough ago."""
        job = live.job.name
        found = self._measured(job)
        if found is None or now_s - self._passed_on_s.get(job, now_s - LEARNED_EVERY_S) < LEARNED_EVERY_S:
            return
        assert self._state is not None
        profile = self._alone(job, live.attempt, found)
        # Else two periods that are 3 % apart may seem to be 6 % apart for ever, and so never come together.
        refines = found.samples == KEPT and job not in self._traffic.shifts and self._refined.get(job) != live.attempt
        if refines:
            self._refined[job] = live.attempt
        if is_other(profile_of(self._state, live), profile, REFINED_BY if refines else CHANGED_BY):
            self._ready[job] = profile
            self._passed_on_s[job] = now_s

    def _measured(self, job: str) -> Measured | None:
        """Of the first worker whose samples agree."""
        ranks = self._samples.get(job, {})
        return next(filter(None, (measured(list(ranks[rank])) for rank in sorted(ranks))), None)

    def _alone(self, job: str, attempt: int, found: Measured) -> TrafficProfile:
        """What a job would do alone.

        That is what it is seen at where it takes turns, or where those on its links together leave some of them free:
        else each is taken to send at its link's rate.
        """
        links = [link for link in self._sharing.links.values() if job in link.jobs]
        is_full = any(self._sent_on(link) >= FULL_LINK * link.bits_per_s for link in links)
        if is_full and job not in self._traffic.shifts:
            bits_per_s = max(PAYLOAD * min(link.bits_per_s for link in links), found.bits_per_s)
        else:
            bits_per_s = found.bits_per_s
        return profiled(found, bits_per_s, job, attempt)

    def _sent_on(self, link: Shared) -> float:
        """Together, while all of them send, bit/s; one of which little is known yet may fill the link."""
        known = {job: self._measured(job) for job in link.jobs if job in self._samples}
        return sum(link.bits_per_s if found is None else found.bits_per_s for found in known.values())
