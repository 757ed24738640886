"""What the log says of links and of jobs' traffic on them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from schemas.scheduling import ClusterLink, JobShift, LinkScore, ScheduleDecision, TrafficProfile


@dataclass(frozen=True, slots=True)
class Traffic:
    """As of the last entry."""

    links: tuple[ClusterLink, ...] = ()
    profiles: Mapping[str, TrafficProfile] = field(default_factory=dict)
    """By job, of those that have not ended."""
    shifts: Mapping[str, JobShift] = field(default_factory=dict)
    """By job."""
    scores: tuple[LinkScore, ...] = ()
    """Of links that several jobs share."""
    shifted: Mapping[str, int] = field(default_factory=dict)
    """By job, the attempt that had a shift last: its runner may pause it still."""

    def learned(self, profiles: tuple[TrafficProfile, ...]) -> Traffic:
        """With new profiles."""
        return replace(self, profiles={**self.profiles, **{profile.job: profile for profile in profiles}})

    def decided(self, decision: ScheduleDecision) -> Traffic:
        """With a decision's shifts, where it has any."""
        if decision.shifts is None:
            return self
        shifts = {shift.job: shift for shift in decision.shifts}
        shifted = {**self.shifted, **{job: shift.attempt for job, shift in shifts.items()}}
        return replace(self, shifts=shifts, scores=decision.link_scores, shifted=shifted)

    def without(self, job: str) -> Traffic:
        """After a job's end."""
        if job not in self.profiles and job not in self.shifted:
            return self
        profiles, shifted = dict(self.profiles), dict(self.shifted)
        profiles.pop(job, None)
        shifted.pop(job, None)
        return replace(self, profiles=profiles, shifted=shifted)


NO_TRAFFIC: Final = Traffic()
