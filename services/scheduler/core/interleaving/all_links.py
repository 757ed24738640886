"""One shift for each job over all links that it uses: links cannot contradict each other. Pure.

Coordinate descent on the mean score of the links, from all jobs together and from Cassini's solution of a part of the
affinity graph that has no loop: the better one, so never below either.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm

import numpy as np

from services.scheduler.core.interleaving.circle import Floats, Iteration, scores_beside, scores_of
from services.scheduler.core.interleaving.one_link import DIGITS, ROUNDS, Best, best_shifts


@dataclass(frozen=True, slots=True)
class Shared:
    """A link and the jobs on it, at least two."""

    bits_per_s: float
    jobs: tuple[str, ...]


def joint_shifts(iterations: Mapping[str, Iteration], links: Mapping[str, Shared]) -> Best:
    """The shifts of all jobs, and the mean score of the links; without links 1.

    Args:
        iterations: of each job.
        links: by name; of jobs that `iterations` has.
    """
    together = dict.fromkeys(iterations, 0)
    if not links:
        return Best(1.0, together)
    circles = _Circles(iterations, links)
    first = circles.descend(together)
    if first.score >= 1 - 10**-DIGITS:
        return first
    if len(links) == 1:
        (link,) = links.values()
        one = best_shifts({job: iterations[job] for job in link.jobs}, link.bits_per_s)
        second = Best(one.score, together | dict(one.shifts))
    else:
        second = circles.descend(together | _loop_free(circles))
    return second if second.score > first.score + 10**-DIGITS else first


class _Circles:
    """The circles of all links, with the same steps."""

    def __init__(self, iterations: Mapping[str, Iteration], links: Mapping[str, Shared]) -> None:
        """Args: iterations: of each job. links: by name."""
        self.iterations = iterations
        self.links = links
        self._capacities: Floats = np.array([[link.bits_per_s] for link in links.values()])
        self._steps = lcm(*(each.period for each in iterations.values()))
        self._turned = {job: each.turned(self._steps) for job, each in iterations.items()}
        places: dict[str, list[int]] = {job: [] for job in sorted(iterations)}
        self._beside: dict[str, set[str]] = {job: set() for job in iterations}
        for place, link in enumerate(links.values()):
            for job in link.jobs:
                places[job].append(place)
                self._beside[job].update(link.jobs)
        self._places = {job: np.array(own) for job, own in places.items() if own}
        """Of the links of each job that uses any, by name."""
        self._capacities_of = {job: self._capacities[own] for job, own in self._places.items()}

    def descend(self, start: Mapping[str, int]) -> Best:
        """Move one job after another to where its links have the highest scores, until nothing is gained."""
        shifts, total = dict(start), self._total(start)
        score = float(scores_of(total, self._capacities).mean())
        in_question = set(self._places)
        for _ in range(ROUNDS):
            for job, places in self._places.items():
                if job not in in_question:  # it is where it fits best, and nothing has moved beside it since
                    continue
                in_question.remove(job)
                others = total[places] - self._turned[job][shifts[job]]
                scores = scores_beside(others, self.iterations[job], self._capacities_of[job])
                shift = int(scores.sum(axis=0).round(DIGITS).argmax())
                if shift != shifts[job]:
                    shifts[job] = shift
                    total[places] = others + self._turned[job][shift]
                    in_question |= self._beside[job] - {job}
            before, score = score, float(scores_of(total, self._capacities).mean())
            if score <= before + 10**-DIGITS:
                break
        return Best(score, shifts)

    def unshifted(self) -> tuple[list[float], list[float]]:
        """The score of each link without shifts, and one that none exceed: that of traffic that is spread evenly."""
        total = self._total(dict.fromkeys(self.iterations, 0))
        even = total.mean(axis=-1, keepdims=True)
        return scores_of(total, self._capacities).tolist(), scores_of(even, self._capacities).tolist()

    def _total(self, shifts: Mapping[str, int]) -> Floats:
        total: Floats = np.zeros((len(self.links), self._steps))
        for job, places in self._places.items():
            total[places] += self._turned[job][shifts[job]]
        return total


def _loop_free(circles: _Circles) -> dict[str, int]:
    """Shifts that are the best ones of each link of a part of the affinity graph without loops.

    Links by falling gain; each is kept unless two of its jobs are connected by those before it already. That may be
    known before its best shifts are: so these are looked for once no other link can gain more.
    """
    iterations, links = circles.iterations, circles.links
    unshifted, most = (dict(zip(links, scores, strict=True)) for scores in circles.unshifted())
    gains = [(-round(most[name] - unshifted[name] + 10**-DIGITS, DIGITS), False, name) for name in links]
    heapq.heapify(gains)
    part_of = {job: {job} for job in iterations}
    best: dict[str, Best] = {}
    kept: list[Mapping[str, int]] = []
    while gains:
        _, is_exact, name = heapq.heappop(gains)
        link = links[name]
        parts = {id(part_of[job]): part_of[job] for job in link.jobs}
        if len(parts) < len(link.jobs):
            continue
        if not is_exact:
            best[name] = best_shifts({job: iterations[job] for job in link.jobs}, link.bits_per_s)
            heapq.heappush(gains, (-round(best[name].score - unshifted[name], DIGITS), True, name))
            continue
        kept.append(best[name].shifts)
        whole = set[str]().union(*parts.values())
        part_of |= dict.fromkeys(whole, whole)
    return _walked(kept, {job: each.period for job, each in iterations.items()})


def _walked(links: list[Mapping[str, int]], periods: Mapping[str, int]) -> dict[str, int]:
    """One shift for each job from those on each link: breadth first from the first job of each part.

    By the paper's formula: t_k = (t_j - t_j on the link + t_k on the link) mod T_k.
    """
    found: dict[str, int] = {}
    for root in sorted({job for link in links for job in link}):
        if root in found:
            continue
        found[root] = 0
        queue = deque([root])
        while queue:
            job = queue.popleft()
            for link in links:
                if job not in link:
                    continue
                for other in sorted(link.keys() - found.keys()):
                    found[other] = (found[job] - link[job] + link[other]) % periods[other]
                    queue.append(other)
    return found
