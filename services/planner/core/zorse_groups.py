"""Groups of devices for a pipeline: where the network is cut, what a collective inside costs, and in which order. Pure.

After Zorse (Guo et al., 2025): in the complete graph of devices, weighted by bandwidth, the cheapest cut (Stoer and
Wagner, 1997) of all parts is made, again and again: SPLIT of Saran and Vazirani (1995), within 2 - 2/k of the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import networkx as nx
from networkx.algorithms.connectivity import stoer_wagner

from services.planner.core.profile import GIB, Device, Network, total

REFERENCE_BYTES: Final = 10**7
"""Messages of this size were timed for `Network.latency_ms`."""
FIXED_SHARE: Final = 0.8
"""Of the time of such a message, what a smaller one takes at least; the rest is in proportion to its size."""
_PROPORTIONAL_SHARE: Final = 0.2
_LEAST_GIB_PER_S: Final = 0.0001

Parts = tuple[tuple[Device, ...], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Devices that have their layers' state together."""

    devices: tuple[Device, ...]
    gather_ms: tuple[float, ...]
    """All-gather of one layer of each class."""
    scatter_ms: tuple[float, ...]
    send_next_ms: float = 0.0
    """Of a micro-batch's output to the next group in the pipeline."""
    send_previous_ms: float = 0.0

    @property
    def machines(self) -> list[int]:
        """Ascending."""
        return sorted({device.machine for device in self.devices})


class _Cut(NamedTuple):
    weight: float
    side: frozenset[int]
    """Ranks on one side."""


def splits(devices: Sequence[Device], network: Network) -> list[Parts]:
    """The devices in 1, 2 ... parts, up to as many as there are machines; each continues the one before."""
    machines = len({device.machine for device in devices})
    parts: Parts = (tuple(sorted(devices, key=lambda device: device.rank)),)
    found, cuts = [parts], dict[int, _Cut]()
    while len(parts) < machines:
        for part in parts:
            if len(part) > 1 and part[0].rank not in cuts:
                cuts[part[0].rank] = _cheapest_cut(part, network)
        first = min(cuts, key=lambda rank: (cuts[rank].weight, rank))
        parts = _divided(parts, first, cuts.pop(first).side)
        found.append(parts)
    return found


def _divided(parts: Parts, first: int, side: frozenset[int]) -> Parts:
    """The part that begins with that rank, in two; parts stay in the order of their first ranks."""
    halves: list[tuple[Device, ...]] = []
    for part in parts:
        if part[0].rank == first:
            halves.append(tuple(device for device in part if device.rank in side))
            halves.append(tuple(device for device in part if device.rank not in side))
        else:
            halves.append(part)
    return tuple(sorted(halves, key=lambda part: part[0].rank))


def _cheapest_cut(devices: Sequence[Device], network: Network) -> _Cut:
    """Weights are whole GiB/s, at least 1."""
    graph = nx.Graph()
    graph.add_nodes_from(device.rank for device in devices)
    for i, one in enumerate(devices):
        for other in devices[i + 1 :]:
            weight = int(max(network.gib_per_s[one.machine][other.machine], 1))
            graph.add_edge(one.rank, other.rank, weight=weight)
    weight, (side, _) = stoer_wagner(graph)
    return _Cut(weight, frozenset(side))


def ring_ms(devices: Sequence[Device], network: Network, size_bytes: float, factor: float) -> float:
    """All-gather or reduce-scatter over a ring in order of rank: n - 1 steps, each as long as over its slowest link."""
    part = size_bytes / GIB / len(devices)
    following = [*devices[1:], devices[0]]
    rates = [network.gib_per_s[one.machine][other.machine] for one, other in zip(devices, following, strict=True)]
    slowest = max(part / rate for rate in rates) if len(devices) > 1 else 0.0
    return total([slowest] * (len(devices) - 1)) * 1_000 * factor


def fixed_ms(devices: Sequence[Device], network: Network) -> float:
    """What a ring collective takes whatever its size: of each of its n - 1 steps, over the link where that is longest.

    A link was timed with messages of `REFERENCE_BYTES`: what their bytes do not take at its rate is fixed.
    """
    following = [*devices[1:], devices[0]]
    longest = 0.0
    for one, other in zip(devices, following, strict=True):
        gib_per_s = network.gib_per_s[one.machine][other.machine]
        sent_ms = REFERENCE_BYTES / GIB / gib_per_s * 1_000
        longest = max(longest, network.latency_ms[one.machine][other.machine] - sent_ms)
    return longest * (len(devices) - 1)


def chain(groups: Sequence[Group], network: Network) -> tuple[Group, ...]:
    """From the group with the fastest all-gather on, each time that with the best mean bandwidth to the one before."""
    left = sorted(groups, key=lambda group: total(group.gather_ms))
    ordered = [left.pop(0)]
    while left:
        speeds = [_mean_gib_per_s(network, ordered[-1], group) for group in left]
        ordered.append(left.pop(speeds.index(max(speeds))))
    return tuple(ordered)


def _mean_gib_per_s(network: Network, one: Group, other: Group) -> float:
    rates = [network.gib_per_s[i][j] for i in one.machines for j in other.machines]
    return total(rates) / len(rates)


def send_ms(one: Group, other: Group, network: Network, size_bytes: float) -> float:
    """A message to the next group: the time of a reference message, and what exceeds it over the slowest link.

    As released, the reference is the last pair of machines, or the first group's last machine where both have one in
    common.
    """
    pairs = [(i, j) for i in one.machines for j in other.machines]
    last, following = pairs[-1]
    common = any(i == j for i, j in pairs)
    reference = network.latency_ms[last][last] if common else network.latency_ms[last][following]
    if size_bytes <= REFERENCE_BYTES:
        return reference * (FIXED_SHARE + _PROPORTIONAL_SHARE * (size_bytes / REFERENCE_BYTES))
    slowest = max(min(network.gib_per_s[i][j] for i, j in pairs), _LEAST_GIB_PER_S)
    return reference + ((size_bytes - REFERENCE_BYTES) / GIB) * 1_000 / slowest
