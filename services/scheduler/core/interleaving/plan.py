"""Which jobs on shared links are shifted, by how much, and why the others are not. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.scheduling import MAX_PERIOD_MS, MAX_REASON_CHARACTERS, MLTCP, JobShift, LinkScore, TrafficProfile
from services.scheduler.core.interleaving.all_links import Shared, joint_shifts
from services.scheduler.core.interleaving.circle import Circle, Iteration
from services.scheduler.core.interleaving.common_period import CommonPeriod, common_period, connected
from services.scheduler.core.interleaving.demand import independent_score, on_grid, slowed
from services.scheduler.core.interleaving.one_link import Best, best_shifts

FITS: Final = 0.95
"""A link with this score needs no shifts."""
LEAST_GAIN: Final = 0.02
"""Of the mean score, beyond what longer periods cost: below it pauses are not worth their while."""
MOST_SENDING: Final = 0.9
"""A job that sends for a larger share of its period has no quiet phase to be paused in."""
SCORE_DIGITS: Final = 4
SPACING: Final = 0.15
"""Shifts are searched for phases that are longer by this share, so that a job that is a little late sends alone."""


@dataclass(frozen=True, slots=True)
class Sharer:
    """A job that runs, with workers on both sides of a link or several."""

    attempt: int
    profile: TrafficProfile | None
    """None: its traffic is not known yet."""
    interleave: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What follows for jobs and links."""

    shifts: tuple[JobShift, ...]
    """By name; of jobs that are to be paced."""
    scores: tuple[LinkScore, ...]
    """Of links that several jobs share, by name."""


def plan(links: Mapping[str, Shared], sharers: Mapping[str, Sharer]) -> Plan:
    """Shifts and scores.

    Args:
        links: that several jobs share, by name.
        sharers: those jobs, by name.
    """
    profiles = slowed_by_links(links, sharers)
    scores: dict[str, LinkScore] = {}
    open_links: dict[str, Shared] = {}
    for name, link in sorted(links.items()):
        movable = tuple(job for job in link.jobs if not _obstacle(sharers[job], profiles.get(job)))
        if why := _why_not(link, movable, sharers, profiles):
            scores[name] = _unpaced(name, link, profiles, why)
        else:
            open_links[name] = Shared(link.bits_per_s, movable)
    shifts: list[JobShift] = []
    for part in connected([frozenset(link.jobs) for link in open_links.values()]):
        own = {name: link for name, link in open_links.items() if part.issuperset(link.jobs)}
        found = _Part(own, {job: profiles[job] for job in sorted(part)})
        steps, found_scores = found.planned()
        scores |= {name: score.model_copy(update={"jobs": links[name].jobs}) for name, score in found_scores.items()}
        shifts += [
            JobShift(job=job, attempt=sharers[job].attempt, period_ms=period_ms, shift_ms=shift_ms)
            for job, (period_ms, shift_ms) in steps.items()
        ]
    return Plan(tuple(sorted(shifts, key=lambda each: each.job)), tuple(scores[name] for name in sorted(scores)))


def fit(link: Shared, profiles: Mapping[str, TrafficProfile]) -> float:
    """How well jobs would fit on a link at their best shifts: by which placements are compared."""
    known = {job: slowed(profiles[job], link.bits_per_s) for job in link.jobs if job in profiles}
    common = common_period({job: profile.period_ms for job, profile in known.items()})
    if common is None or len(common.counts) < len(known):
        return independent_score(list(known.values()), link.bits_per_s)
    iterations = {job: on_grid(each, common.period_steps(job), common.step_ms) for job, each in known.items()}
    return best_shifts(iterations, link.bits_per_s).score


def slowed_by_links(links: Mapping[str, Shared], sharers: Mapping[str, Sharer]) -> dict[str, TrafficProfile]:
    """Profiles as the slowest shared link of each job allows."""
    slowest: dict[str, float] = {}
    for link in links.values():
        for job in link.jobs:
            slowest[job] = min(link.bits_per_s, slowest.get(job, link.bits_per_s))
    return {
        job: slowed(sharer.profile, slowest[job])
        for job, sharer in sharers.items()
        if sharer.profile is not None and job in slowest
    }


def _obstacle(sharer: Sharer, profile: TrafficProfile | None) -> str:
    """Why a job cannot be shifted; empty: it can."""
    if not sharer.interleave:
        return "may not be paused"
    if profile is None:
        return "is not known by its traffic yet"
    if profile.sending_ms > MOST_SENDING * profile.period_ms:
        return f"sends for {profile.sending_ms / profile.period_ms:.0%} of its iteration, so no phase is quiet"
    return ""


def _why_not(
    link: Shared, movable: Sequence[str], sharers: Mapping[str, Sharer], profiles: Mapping[str, TrafficProfile]
) -> str:
    """Why nothing can be shifted on a link; empty: it can."""
    by_itself = [job for job in link.jobs if job in profiles and profiles[job].congestion_control.startswith(MLTCP)]
    if by_itself:
        return _cut(f"{' '.join(by_itself)}: {MLTCP} makes its jobs take turns by itself")
    if len(movable) > 1:
        return ""
    fixed = (job for job in link.jobs if job not in movable)
    return _cut("; ".join(f"{job} {_obstacle(sharers[job], profiles.get(job))}" for job in fixed))


def _unpaced(name: str, link: Shared, profiles: Mapping[str, TrafficProfile], why: str) -> LinkScore:
    known = [profiles[job] for job in link.jobs if job in profiles]
    score = round(independent_score(known, link.bits_per_s), SCORE_DIGITS)
    return LinkScore(
        link=name, bits_per_s=round(link.bits_per_s), jobs=link.jobs, unshifted=score, score=score, why=why
    )


class _Part:
    """Links that are connected by jobs on them, which may be shifted."""

    def __init__(self, links: Mapping[str, Shared], profiles: Mapping[str, TrafficProfile]) -> None:
        self._links = links
        self._profiles = profiles
        by_load = sorted(profiles, key=lambda job: (-profiles[job].sent_bytes / profiles[job].period_ms, job))
        self._common = common_period({job: profiles[job].period_ms for job in by_load})

    def planned(self) -> tuple[dict[str, tuple[int, int]], dict[str, LinkScore]]:
        """Period and shift of each job that is shifted, ms, and the score of each link."""
        common = self._common
        members = {
            name: tuple(job for job in link.jobs if common is not None and job in common.counts)
            for name, link in self._links.items()
        }
        scores = {
            name: _unpaced(
                name, link, self._profiles, _cut(f"the periods of {' '.join(link.jobs)} never come together")
            )
            for name, link in self._links.items()
            if len(members[name]) < 2
        }
        if common is None:
            return {}, scores
        iterations = {
            job: on_grid(self._profiles[job], common.period_steps(job), common.step_ms) for job in common.counts
        }
        full: dict[str, Shared] = {}
        for name in self._links.keys() - scores.keys():
            shared = Shared(self._links[name].bits_per_s, members[name])
            score = _scored(iterations, shared, {})
            if score >= FITS:
                scores[name] = self._scored_link(name, score, score, "they fit beside each other as they are")
            else:
                full[name] = shared
        return self._turned(common, iterations, dict(sorted(full.items())), scores)

    def _turned(
        self,
        common: CommonPeriod,
        iterations: Mapping[str, Iteration],
        full: Mapping[str, Shared],
        scores: dict[str, LinkScore],
    ) -> tuple[dict[str, tuple[int, int]], dict[str, LinkScore]]:
        """With the full links, if turns gain more than they cost."""
        jobs = sorted({job for link in full.values() for job in link.jobs})
        if not jobs:
            return {}, scores
        best = self._best(common, {job: iterations[job] for job in jobs}, full)
        unshifted = {name: _scored(iterations, link, {}) for name, link in full.items()}
        gain = best.score - sum(unshifted.values()) / len(unshifted)
        periods_ms = {job: common.period_ms(job) for job in jobs}
        cost = max(periods_ms[job] / self._profiles[job].period_ms for job in jobs) - 1
        why = f"turns would gain {gain:.1%}, and iterations of equal length cost {cost:.1%}"
        pays = gain > cost + LEAST_GAIN
        for name, link in full.items():
            score = _scored(iterations, link, best.shifts) if pays else unshifted[name]
            scores[name] = self._scored_link(name, unshifted[name], score, "" if pays else why)
        first = best.shifts[jobs[0]]  # to turn all by the same changes nothing
        shifts_ms = {job: round((best.shifts[job] - first) * common.step_ms) % periods_ms[job] for job in jobs}
        return {job: (periods_ms[job], shifts_ms[job]) for job in jobs if pays}, scores

    def _best(self, common: CommonPeriod, iterations: Mapping[str, Iteration], full: Mapping[str, Shared]) -> Best:
        """The best shifts, and of several as good ones those with room between the jobs."""
        best = joint_shifts(iterations, full)
        longer = {
            job: on_grid(_longer(self._profiles[job]), common.period_steps(job), common.step_ms) for job in iterations
        }
        spaced = joint_shifts(longer, full).shifts
        score = sum(_scored(iterations, link, spaced) for link in full.values()) / len(full)
        return Best(score, spaced) if round(score - best.score, SCORE_DIGITS) >= 0 else best

    def _scored_link(self, name: str, unshifted: float, score: float, why: str) -> LinkScore:
        link = self._links[name]
        return LinkScore(
            link=name,
            bits_per_s=round(link.bits_per_s),
            jobs=link.jobs,
            unshifted=round(unshifted, SCORE_DIGITS),
            score=round(score, SCORE_DIGITS),
            why=why,
        )


def _longer(profile: TrafficProfile) -> TrafficProfile:
    phases = [
        phase.model_copy(update={"end_ms": min(round(phase.end_ms + SPACING * phase.length_ms), MAX_PERIOD_MS)})
        for phase in profile.phases
    ]
    return profile.model_copy(update={"phases": tuple(phases)})


def _scored(iterations: Mapping[str, Iteration], link: Shared, shifts: Mapping[str, int]) -> float:
    return Circle({job: iterations[job] for job in link.jobs}, link.bits_per_s, shifts).score()


def _cut(text: str) -> str:
    return text[:MAX_REASON_CHARACTERS]
