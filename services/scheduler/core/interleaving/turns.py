"""When each shifted job may begin to send: it waits for those that send already or come before it. Pure.

Jobs that fit beside each other by their shifts fall into step by that, and need not wait any more. One that is late
cannot be made faster: it gets the first place that is free when it comes, and only those in whose way it is then wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from schemas.scheduling import IterationSample, JobShift, LinkScore, Pace, TrafficProfile
from services.scheduler.core.interleaving.common_period import connected
from services.scheduler.core.interleaving.free_places import Phase, waiting

MISSED: Final = 0.02
"""Of a period: a job that has not begun so long after its turn takes longer, and no other one waits for it; or it has
begun, where its last phase was brief."""
LEAST_CHANGE: Final = 0.01
"""Of a period: a turn that moves by less stays as it is, as no begin is any more exact (`phase.TOLERANCE`)."""
_NS_PER_MS: Final = 1_000_000


@dataclass(slots=True)
class _Group:
    """Jobs that share links, directly or by way of others."""

    shifts: dict[str, JobShift]
    phases: dict[str, Phase]
    """Of each job, as it would be from time 0 on."""
    rates: dict[str, float]
    """Of their links, bit/s."""
    present: dict[str, Phase] = field(default_factory=dict)
    """Of jobs that have begun, as far as is known."""
    due: dict[str, Phase] = field(default_factory=dict)
    """Of jobs that have sent all, as they would be next."""
    brief: set[str] = field(default_factory=set)
    """Jobs of whose last phase begin and end were published together."""
    turns_ns: dict[str, int] = field(default_factory=dict)
    """When each may begin: a time that is over where it need not wait."""

    def began(self, job: str, begin_ns: int) -> bool:
        """A job sends; whether any turn has changed by it."""
        self.due.pop(job, None)
        self.present[job] = replace(self.phases[job], begin_ns=begin_ns)
        is_new = job not in self.turns_ns  # its runner says only of a job that it paces when it is due
        self.turns_ns.setdefault(job, begin_ns)
        return self._give(begin_ns) or is_new

    def ended(self, job: str, now_ns: int, due_ns: int) -> bool:
        """A job has sent all, and begins next at that time unless it waits; whether any turn has changed by it."""
        self.present.pop(job, None)
        (self.brief.add if job in self.due else self.brief.discard)(job)
        self.due[job] = replace(self.phases[job], begin_ns=due_ns)
        self.turns_ns.setdefault(job, due_ns)
        return self._give(now_ns)

    def _give(self, now_ns: int) -> bool:
        """Give turns to all that have not begun; of those that need not wait, only to one that was to wait before."""
        begins_ns = {job: max(phase.begin_ns, self.turns_ns[job]) for job, phase in self.due.items()}
        periods_ns = {job: _period_ns(self.shifts[job]) for job in self.due}
        expected = {
            job: phase for job, phase in self.due.items() if begins_ns[job] + MISSED * periods_ns[job] >= now_ns
        }
        silent = self.brief & (self.due.keys() - expected.keys())
        begun = [replace(self.due[job], begin_ns=begins_ns[job]) for job in sorted(silent)]
        turns_ns = waiting([*self.present.values(), *begun], expected.values(), self.rates)
        least_ns = {job: LEAST_CHANGE * periods_ns[job] for job in expected}
        waits = {
            job
            for job, phase in expected.items()
            if max(turns_ns[job], self.turns_ns[job]) - phase.begin_ns >= least_ns[job]
        }
        changed = {job: turns_ns[job] for job in waits if abs(turns_ns[job] - self.turns_ns[job]) >= least_ns[job]}
        self.turns_ns |= changed
        return bool(changed)


def _period_ns(shift: JobShift) -> int:
    return shift.period_ms * _NS_PER_MS


def _begin_ns(sample: IterationSample) -> int:
    """Of the iteration that follows the one of the sample: it ended as that began to send."""
    return sample.time_ns + 1_000 * sample.period_us


@dataclass(slots=True)
class Turns:
    """Of all jobs that are shifted."""

    _groups: list[_Group] = field(default_factory=list)

    def planned(
        self,
        shifts: Mapping[str, JobShift],
        scores: Iterable[LinkScore],
        profiles: Mapping[str, TrafficProfile],
        latest: Mapping[str, IterationSample],
    ) -> None:
        """Follow the log: what is known of jobs that are shifted still is kept.

        Args:
            shifts: of all jobs that have one.
            scores: of links.
            profiles: of these jobs, as their links allow.
            latest: of jobs, seen where they are paced.
        """
        links = {
            score.link: on_link
            for score in scores
            if not score.why and len(on_link := [job for job in score.jobs if job in shifts.keys() & profiles]) > 1
        }
        rates = {score.link: float(score.bits_per_s) for score in scores}
        before = {job: group for group in self._groups for job in group.shifts}
        self._groups = []
        for jobs in connected([frozenset(each) for each in links.values()]):
            own = {job: shifts[job] for job in sorted(jobs)}
            phases = {job: _phase(profiles[job], [link for link in links if job in links[link]]) for job in own}
            group = _Group(own, phases, rates)
            for job, shift in own.items():
                known = before.get(job)
                if known is not None and known.shifts[job].attempt == shift.attempt:
                    _keep(group, known, job)
                elif job in latest:
                    group.began(job, _begin_ns(latest[job]))
            self._groups.append(group)

    def add(self, sample: IterationSample) -> bool:
        """A job's iteration, seen where it is paced, or when the next one is due; whether any turn has changed."""
        group = next((group for group in self._groups if sample.job in group.shifts), None)
        if group is None or group.shifts[sample.job].attempt != sample.attempt:
            return False
        if sample.due_ns:
            return group.ended(sample.job, sample.ended_ns, sample.due_ns)
        return group.began(sample.job, _begin_ns(sample))

    def paces(self) -> dict[str, Pace]:
        """Of each job whose turn is known."""
        return {
            job: Pace(begin_ns=turn_ns, period_us=1_000 * group.shifts[job].period_ms)
            for group in self._groups
            for job, turn_ns in group.turns_ns.items()
        }


def _keep(group: _Group, known: _Group, job: str) -> None:
    """What is known of a job, with the phase that it has now."""
    for before, now in ((known.present, group.present), (known.due, group.due)):
        if job in before:
            now[job] = replace(group.phases[job], begin_ns=before[job].begin_ns)
    if job in known.brief:
        group.brief.add(job)
    if job in known.turns_ns:
        group.turns_ns[job] = known.turns_ns[job]


def _phase(profile: TrafficProfile, links: list[str]) -> Phase:
    first, last = profile.phases[0], profile.phases[-1]
    rate = max(phase.bits_per_s for phase in profile.phases)
    return Phase(profile.job, 0, (last.end_ms - first.begin_ms) * _NS_PER_MS, rate, links)
