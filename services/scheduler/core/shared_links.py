"""Which running jobs share which links, and the shifts that follow from it. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from schemas.scheduling import ClusterLink, TrafficProfile
from services.scheduler.core.interleaving.all_links import Shared
from services.scheduler.core.interleaving.plan import Plan, Sharer, plan
from services.scheduler.core.jobs import Phase
from services.scheduler.core.live import Live
from services.scheduler.core.state import State


@dataclass(frozen=True, slots=True)
class Sharing:
    """All that shifts follow from: where it is the same, so are they."""

    links: Mapping[str, Shared]
    """That two jobs or more use."""
    sharers: Mapping[str, Sharer]
    """Those jobs."""


class LinkUse:
    """Which links jobs use by where their workers are: those with workers on both sides."""

    def __init__(self, links: Iterable[ClusterLink]) -> None:
        self._of_node: defaultdict[str, list[str]] = defaultdict(list)
        for link in links:
            for node in link.nodes:
                self._of_node[node].append(link.link)

    def links(self, nodes: Sequence[str]) -> Iterator[str]:
        """Of a job, by the node of each of its workers."""
        inside = Counter(link for node in nodes for link in self._of_node.get(node, ()))
        return (link for link, workers in inside.items() if workers < len(nodes))


def users(state: State) -> dict[str, tuple[str, ...]]:
    """Of each link that is used, the jobs that run over it, by name."""
    use = LinkUse(state.traffic.links)
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, live in state.live.items():
        if live.workers and live.job.phase is Phase.RUNNING:
            for link in use.links(live.job.nodes):
                found[link].append(name)
    return {link: tuple(sorted(jobs)) for link, jobs in found.items()}


def sharing(state: State) -> Sharing:
    """As of now."""
    if not state.traffic.links:
        return Sharing({}, {})
    rates = {link.link: float(link.bits_per_s) for link in state.traffic.links}
    links = {link: Shared(rates[link], jobs) for link, jobs in users(state).items() if len(jobs) > 1}
    names = {job for link in links.values() for job in link.jobs}
    return Sharing(links, {name: _sharer(state, state.live[name]) for name in sorted(names)})


def interleaved(found: Sharing) -> Plan:
    """Shifts and scores of all that share links."""
    return plan(found.links, found.sharers)


def is_other(found: Sharing, before: State) -> bool:
    """Whether links are shared otherwise than the latest shifts were decided for, or more is known of their jobs.

    Args:
        found: after an entry.
        before: the state before it, which has the links of the latest decision, and their jobs.
    """
    decided = {score.link: (score.bits_per_s, score.jobs) for score in before.traffic.scores}
    if {name: (round(link.bits_per_s), link.jobs) for name, link in found.links.items()} != decided:
        return True
    return any(
        name not in before.live or _sharer(before, before.live[name]) != sharer
        for name, sharer in found.sharers.items()
    )


def profile_of(state: State, live: Live) -> TrafficProfile | None:
    """What is known of a job's traffic where it runs now; None: nothing, or only where it ran otherwise before."""
    profile = state.traffic.profiles.get(live.job.name)
    if profile is None or profile.attempt == live.attempt:
        return profile
    before: tuple[str, ...] = next((span.nodes for span in live.spans if span.attempt == profile.attempt), ())
    alike = sorted(Counter(before).values()) == sorted(Counter(live.job.nodes).values())
    return profile if alike else None


def _sharer(state: State, live: Live) -> Sharer:
    return Sharer(live.attempt, profile_of(state, live), live.spec.interleave)
