"""What the fast path's core takes in, holds and gives out. Pure; times are seconds of the monotonic clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Self

PROTOCOL: Final = 200
"""Of every route and rule of ours: nobody else's is ever deleted."""
STANDBY_TABLES: Final = 8
"""At most so many uplinks have a table of their own, see `services.fastpath.group`."""

UP: Final = "up"
DOWN: Final = frozenset({"down", "init"})
"""States of a BFD session that is not up, and should be."""
LOCAL_ADMIN_DOWN: Final = "adm-down"
"""Closed by an operator here."""
REMOTE_ADMIN_DOWN: Final = "remote-adm-down"
"""Closed at the switch, or its bfdd has started again: it says down, and no failure."""
ADMIN_DOWN: Final = frozenset({LOCAL_ADMIN_DOWN, REMOTE_ADMIN_DOWN})
"""Somebody switched the session off: that says nothing of the path (RFC 5882, 4.2), and is no fault."""


class Ownership(NamedTuple):
    """What is ours in a network namespace: a rule and a table for overrides; a table per uplink kept ready."""

    table: int = 100
    priority: int = 90
    """Of the rule; before that of the main table, 32766. Rules of tables kept ready have the next one."""

    @property
    def tables(self) -> range:
        """That of overrides first."""
        return range(self.table, self.table + 1 + STANDBY_TABLES)


class Cause(StrEnum):
    """Why a next hop is held for dead."""

    BFD = "bfd"
    """Its session left the state up (RFC 5880)."""
    CARRIER = "carrier"
    """The link lost IFF_LOWER_UP."""
    PEER = "peer"
    """The host at the other end says that it lost its link to that ToR."""
    BGP = "bgp"
    """The switch has closed its BGP session with us: it may hear us no more."""


class Release(StrEnum):
    """Why an override ended."""

    FRR_CONVERGED = "frr_converged"
    """FRR's route names none of the dead hops any more."""
    FRR_WITHDREW = "frr_withdrew"
    """FRR has no route there any more."""
    TIMEOUT = "timeout"
    """T_max is over, and nothing local speaks against the hop."""
    NO_LIVE_HOP = "no_live_hop"
    """The last live hop died as well, or FRR kept only dead ones: its route stands."""
    FLAP_DAMPED = "flap_damped"
    """Too many faults: FRR alone is in charge."""
    REFUSED = "refused"
    """The kernel did not take it."""
    SHUTDOWN = "shutdown"
    """The fast path ends."""
    LOST = "lost"
    """We stood still, and the watchdog or a restart has flushed the table."""


class Hop(NamedTuple):
    """One way to a destination."""

    ifindex: int
    via: bytes = b""
    """The gateway attributes as they came (RTA_GATEWAY or RTA_VIA, with headers): ours carry the same."""
    flags: int = 0
    """Only RTNH_F_ONLINK."""
    weight: int = 0
    """rtnh_hops: weight - 1."""


class FrrRoute(NamedTuple):
    """What FRR has installed in the main table for one destination."""

    hops: tuple[Hop, ...]
    source: bytes = b""
    """RTA_PREFSRC, the address; empty: none."""


class Write(NamedTuple):
    """One route of our own tables."""

    destination: str
    """An address; routes are to single hosts."""
    route: FrrRoute | None
    """None: delete it."""
    table: int = 0
    """0: that of overrides; n: that kept ready for the n-th uplink."""


class Switch(NamedTuple):
    """Let packets look into a table that is kept ready, or no more."""

    table: int
    on: bool


class Mark(NamedTuple):
    """Why one hop of one destination is held for dead."""

    since_s: float
    cause: Cause


@dataclass(slots=True)
class Override:
    """A route of our table."""

    marks: dict[int, Mark]
    """By ifindex."""
    route: FrrRoute
    """As installed."""
    since_s: float
    alarmed: bool = False


class Overridden(NamedTuple):
    """One destination's override was installed or changed."""

    destination: str
    before: tuple[Hop, ...]
    """FRR's."""
    after: tuple[Hop, ...]


class Released(NamedTuple):
    """One destination was handed back."""

    destination: str
    uplinks: tuple[str, ...]
    cause: str
    """Why it was overridden."""
    reason: Release
    held_s: float
    before: tuple[Hop, ...]
    """What the override had."""
    after: tuple[Hop, ...]
    """FRR's, which counts now."""


class Status(NamedTuple):
    """Something about the fast path as a whole."""

    kind: str
    """input_lost, input_restored, flap_damped, flap_damping_ended, suppressed, not_converging, refused..."""
    reason: str
    alarm: bool = False
    uplink: str = ""
    peer: str = ""


class Tell(NamedTuple):
    """Tell the other hosts that we cannot be reached through a ToR."""

    uplink: str
    tor: str
    """Its router id; empty: not known, nobody can be told."""


class GroupChange(NamedTuple):
    """All destinations of a table that is kept ready were overridden at once, or handed back."""

    uplink: str
    cause: Cause
    reason: Release | None
    """None: overridden."""
    held_s: float
    rows: dict[str, FrrRoute]
    """Overrides by destination."""
    routes: dict[str, FrrRoute]
    """FRR's."""


class Outcome(NamedTuple):
    """What an input led to, in the order in which it is due: writes first."""

    writes: list[Write | Switch]
    tell: Tell | None
    overridden: list[Overridden]
    released: list[Released]
    groups: list[GroupChange]
    statuses: list[Status]

    @classmethod
    def nothing(cls) -> Self:
        """To begin with: its lists are filled in."""
        return cls([], None, [], [], [], [])


class Limits(NamedTuple):
    """Rules 8 and 11."""

    t_max_s: float = 1.0
    """How long an override lives whose cause is another host's word, or over."""
    damper_triggers: int = 3
    """More faults than this of one uplink (of one peer) within the window..."""
    damper_window_s: float = 10.0
    damper_hold_s: float = 30.0
    """...and there are no overrides (none for that peer) for so long."""


@dataclass(slots=True)
class FaultCount:
    """Faults of one source within the damper's window."""

    times_s: deque[float] = field(default_factory=deque)

    def add(self, now_s: float, limits: Limits) -> bool:
        """Count one; whether there are too many."""
        times = self.times_s
        times.append(now_s)
        while times[0] <= now_s - limits.damper_window_s:
            times.popleft()
        return len(times) > limits.damper_triggers


@dataclass(slots=True)
class Uplink:
    """One link to a ToR."""

    name: str
    ifindex: int = 0
    """0: there is no such link now."""
    carrier: bool | None = None
    """IFF_UP and IFF_LOWER_UP; None: not known yet."""
    bfd: str | None = None
    """State of its session; None: not known."""
    tor: str = ""
    """The ToR's router id."""
    faults: FaultCount = field(default_factory=FaultCount)
    closing_until_s: float = 0.0
    """Until then the end of its BGP session follows from BFD's having been closed administratively (FRR 8.4)."""

    def session_is(self, state: str | None, now_s: float, limits: Limits) -> None:
        """Its session has a new state, or none."""
        if state in ADMIN_DOWN and state != self.bfd:
            self.closing_until_s = now_s + limits.t_max_s
        self.bfd = state

    @property
    def dead(self) -> bool:
        """Whether it is known not to carry packets, since whenever."""
        return self.carrier is False or self.bfd in DOWN
