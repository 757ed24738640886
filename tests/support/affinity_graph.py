"""The shifts of Cassini's paper: those of each link, joined over a loop-free graph of jobs and links. The reference."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping


class LoopError(ValueError):
    """The graph has a loop: shifts of its links would contradict each other."""


def affinity_shifts(links: Mapping[str, Mapping[str, int]], periods: Mapping[str, int]) -> dict[str, int]:
    """Algorithm 1 of the paper, on links that two jobs or more share.

    Args:
        links: of each link, the shift of each job on it.
        periods: of jobs.

    Raises:
        LoopError: a job or a link is reached twice.
    """
    of_job: dict[str, list[str]] = {}
    for link, shifts in links.items():
        for job in shifts:
            of_job.setdefault(job, []).append(link)
    found: dict[str, int] = {}
    seen: set[str] = set()
    for root in sorted(of_job):
        if root not in found:
            found[root] = 0
            _walk(root, of_job, links, periods, (found, seen))
    return found


def _walk(
    root: str,
    of_job: Mapping[str, list[str]],
    links: Mapping[str, Mapping[str, int]],
    periods: Mapping[str, int],
    reached: tuple[dict[str, int], set[str]],
) -> None:
    """Breadth first from one job; ``reached``: shifts of jobs, and links."""
    found, seen = reached
    queue: deque[tuple[str, str]] = deque([(root, "")])
    while queue:
        job, came_by = queue.popleft()
        for link in sorted(set(of_job[job]) - {came_by}):
            if link in seen or found.keys() & links[link].keys() != {job}:
                raise LoopError(link)
            seen.add(link)
            for other in sorted(links[link].keys() - {job}):
                found[other] = (found[job] - links[link][job] + links[link][other]) % periods[other]
                queue.append((other, link))
