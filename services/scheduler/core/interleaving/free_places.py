"""Sending phases one after another on links: each begins where its links are free, first come, first served. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Phase:
    """A job sends, now or soon."""

    job: str
    begin_ns: int
    length_ns: int
    bits_per_s: float
    links: Collection[str]

    @property
    def end_ns(self) -> int:
        """When it has sent all."""
        return self.begin_ns + self.length_ns


def waiting(present: Iterable[Phase], due: Iterable[Phase], rates: Mapping[str, float]) -> dict[str, int]:
    """When each job that is due may begin, ns.

    Args:
        present: of jobs that send already.
        due: when each of the others would begin.
        rates: of the links, bit/s.
    """
    placed = sorted(present, key=lambda phase: phase.begin_ns)
    for place, phase in enumerate(placed):
        placed[place] = replace(phase, length_ns=phase.length_ns + _shared_ns(phase, placed[:place]))
    found: dict[str, int] = {}
    for phase in sorted(due, key=lambda each: (each.begin_ns, each.job)):
        ends = sorted(each.end_ns for each in placed if each.end_ns > phase.begin_ns)
        begins = (replace(phase, begin_ns=begin_ns) for begin_ns in (phase.begin_ns, *ends))
        first = next((each for each in begins if _fits(each, placed, rates)), phase)
        placed.append(first)
        found[phase.job] = first.begin_ns
    return found


def _shared_ns(phase: Phase, before: Iterable[Phase]) -> int:
    """For so long others send beside it, so that it takes longer by that."""
    beside = (each for each in before if set(each.links) & set(phase.links))
    return sum(max(0, each.end_ns - phase.begin_ns) for each in beside)


def _fits(phase: Phase, placed: Iterable[Phase], rates: Mapping[str, float]) -> bool:
    """Whether no link of it ever has to carry more than it can."""
    beside = [each for each in placed if each.begin_ns < phase.end_ns and each.end_ns > phase.begin_ns]
    for link in phase.links:
        on_link = [each for each in beside if link in each.links]
        for at_ns in (phase.begin_ns, *(each.begin_ns for each in on_link)):
            sent = sum(each.bits_per_s for each in on_link if each.begin_ns <= at_ns < each.end_ns)
            if at_ns >= phase.begin_ns and sent + phase.bits_per_s > rates[link]:
                return False
    return True
