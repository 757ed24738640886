"""eBGP between a host and fully meshed switches, as far as one prefix of the host is concerned; messages in any order.

Path selection (RFC 4271, 9.1.2): local preference, then the length of the AS path; equal ones are used together.
Messages of one session arrive in order (TCP), those of different sessions in whichever order the test chooses.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

HOST = "h"
PREPENDED = 2


@dataclass(frozen=True)
class Route:
    """As announced."""

    path: tuple[str, ...]
    graceful_shutdown: bool = False

    @property
    def rank(self) -> tuple[bool, int]:
        """Less is preferred: local preference 0 loses, then the longer path (RFC 8326)."""
        return self.graceful_shutdown, len(self.path)


@dataclass
class Fabric:
    """Switches by name, of which each has an uplink of the host. Starts as one after convergence."""

    switches: tuple[str, ...]
    heard: dict[str, dict[str, Route]] = field(default_factory=dict)
    """Switch -> from whom -> route."""
    queues: dict[tuple[str, str], deque[Route | None]] = field(default_factory=dict)
    may_loop: bool = False
    """Loops until it has converged are known of."""

    def __post_init__(self) -> None:
        self.heard = {switch: {} for switch in self.switches}
        self.queues = {(one, other): deque() for one in (HOST, *self.switches) for other in self.switches}
        for switch in self.switches:
            self.announce(switch, worse=False)
        while pending := [session for session, queue in self.queues.items() if queue]:
            self.deliver(pending[0])
        self.check()

    def announce(self, switch: str, *, worse: bool) -> None:
        """The host tells one switch its route: as usual, or less preferred."""
        self.queues[HOST, switch].append(Route((HOST,) * (1 + PREPENDED * worse), worse))

    def converge(self, order: random.Random) -> None:
        """Deliver everything, looking for loops after each message."""
        while pending := [session for session, queue in self.queues.items() if queue]:
            self.deliver(order.choice(pending))
            if not self.may_loop:
                self.check()
        self.check()

    def next_hops(self, switch: str) -> set[str]:
        """Where it forwards to."""
        routes = self.heard[switch]
        assert routes, f"{switch} has no route"
        least = min(route.rank for route in routes.values())
        return {peer for peer, route in routes.items() if route.rank == least}

    def deliver(self, session: tuple[str, str]) -> None:
        """The next message of one session."""
        peer, switch = session
        before = self._announced(switch)
        route = self.queues[session].popleft()
        if route is None or switch in route.path:
            self.heard[switch].pop(peer, None)
        else:
            self.heard[switch][peer] = route
        if (after := self._announced(switch)) != before:
            for other in self.switches:
                if other != switch:
                    self.queues[switch, other].append(after)

    def check(self) -> None:
        """No packet can go in circles: from every switch all ways lead to the host."""
        for switch in self.switches:
            self._follow(switch, ())

    def _follow(self, switch: str, passed: tuple[str, ...]) -> None:
        assert switch not in passed, f"a forwarding loop: {' -> '.join((*passed, switch))}"
        for peer in self.next_hops(switch) - {HOST}:
            self._follow(peer, (*passed, switch))

    def _announced(self, switch: str) -> Route | None:
        routes = self.heard[switch]
        if not routes:
            return None
        best = min(routes.items(), key=lambda item: (item[1].rank, item[0]))[1]
        return Route((switch, *best.path), best.graceful_shutdown)
