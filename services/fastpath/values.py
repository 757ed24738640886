"""Inputs, state and outputs of the fast path's decisions. Pure; times are seconds of the monotonic clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Self

UP: Final = "up"
DOWN: Final = frozenset({"down", "init"})
"""States of a BFD session that has failed."""
LOCAL_ADMIN_DOWN: Final = "adm-down"
"""Closed by an operator on this host."""
REMOTE_ADMIN_DOWN: Final = "remote-adm-down"
"""Closed at the switch, or its bfdd restarted: state down without a failure diagnostic."""
ADMIN_DOWN: Final = frozenset({LOCAL_ADMIN_DOWN, REMOTE_ADMIN_DOWN})
"""Closed administratively: says nothing about the path (RFC 5882, 4.2), and is no fault."""


class Cause(StrEnum):
    """Why a next hop is considered dead."""

    BFD = "bfd"
    """Its session left the state up (RFC 5880)."""
    CARRIER = "carrier"
    """The link lost IFF_LOWER_UP."""
    PEER = "peer"
    """The remote host signals that it lost its link to that ToR."""
    BGP = "bgp"
    """The switch closed its BGP session: it may no longer receive from this host."""


class RemovalReason(StrEnum):
    """Why an override was removed."""

    FRR_CONVERGED = "frr_converged"
    """FRR's route no longer contains the dead hops."""
    FRR_WITHDREW = "frr_withdrew"
    """FRR withdrew the route."""
    TIMEOUT = "timeout"
    """T_max has passed, and the hop is not dead locally."""
    NO_LIVE_HOP = "no_live_hop"
    """The last live hop died as well, or FRR kept only dead ones: FRR's route applies."""
    FLAP_DAMPED = "flap_damped"
    """Too many faults: FRR alone is in charge."""
    REFUSED = "refused"
    """The kernel rejected it."""
    SHUTDOWN = "shutdown"
    """The fast path stops."""
    LOST = "lost"
    """The process stalled, and the watchdog or a restart has flushed the table."""


class Hop(NamedTuple):
    """A next hop."""

    ifindex: int
    via: bytes = b""
    """The gateway attributes as received (RTA_GATEWAY or RTA_VIA, with headers), copied into overrides."""
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
    """Write of one route in the fast path's tables."""

    destination: str
    """An address; routes are to single hosts."""
    route: FrrRoute | None
    """None: delete it."""
    table: int = 0
    """0: that of overrides; n: the backup table of the n-th uplink."""


class BackupRule(NamedTuple):
    """Add or delete the rule that activates a backup table."""

    table: int
    on: bool


class FaultMark(NamedTuple):
    """Why, and since when, one next hop of one destination is considered dead."""

    since_s: float
    cause: Cause


@dataclass(slots=True)
class Override:
    """A route in the table of overrides."""

    marks: dict[int, FaultMark]
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


class Removed(NamedTuple):
    """One destination's override was removed."""

    destination: str
    uplinks: tuple[str, ...]
    cause: str
    """Why it was overridden."""
    reason: RemovalReason
    held_s: float
    before: tuple[Hop, ...]
    """The override's."""
    after: tuple[Hop, ...]
    """FRR's, which apply now."""


class Status(NamedTuple):
    """A status event of the fast path as a whole."""

    kind: str
    """input_lost, input_restored, flap_damped, flap_damping_ended, suppressed, not_converging, refused..."""
    reason: str
    alarm: bool = False
    uplink: str = ""
    peer: str = ""


class Announce(NamedTuple):
    """Announce to the other hosts that this host is unreachable through a ToR."""

    uplink: str
    tor: str
    """Its router id; empty: unknown, no announcement is possible."""


class BackupTableChange(NamedTuple):
    """A backup table was activated, or deactivated."""

    uplink: str
    cause: Cause
    reason: RemovalReason | None
    """None: activated."""
    held_s: float
    rows: dict[str, FrrRoute]
    """Overrides by destination."""
    routes: dict[str, FrrRoute]
    """FRR's."""


class Outcome(NamedTuple):
    """Output of one input, in the order of execution: writes first."""

    writes: list[Write | BackupRule]
    announce: Announce | None
    overridden: list[Overridden]
    removed: list[Removed]
    table_changes: list[BackupTableChange]
    statuses: list[Status]

    @classmethod
    def nothing(cls) -> Self:
        """An empty output, to be filled."""
        return cls([], None, [], [], [], [])


class Limits(NamedTuple):
    """Rules 8 and 11."""

    t_max_s: float = 1.0
    """Maximum age of an override whose cause is remote, or has ended."""
    damper_triggers: int = 3
    """More faults than this of one uplink (or peer) within the window..."""
    damper_window_s: float = 10.0
    damper_hold_s: float = 30.0
    """...suspend overrides (for that peer) this long."""


@dataclass(slots=True)
class FaultCount:
    """Faults of one source within the damper's window."""

    times_s: deque[float] = field(default_factory=deque)

    def add(self, now_s: float, limits: Limits) -> bool:
        """Count one; returns whether there are too many."""
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
    """0: the link does not exist."""
    carrier: bool | None = None
    """IFF_UP and IFF_LOWER_UP; None: unknown."""
    bfd: str | None = None
    """State of its session; None: unknown."""
    tor: str = ""
    """The ToR's router id."""
    faults: FaultCount = field(default_factory=FaultCount)
    closing_until_s: float = 0.0
    """Until then an end of its BGP session is a consequence of BFD's AdminDown (FRR 8.4)."""

    def session_is(self, state: str | None, now_s: float, limits: Limits) -> None:
        """Set the session's state, or None."""
        if state in ADMIN_DOWN and state != self.bfd:
            self.closing_until_s = now_s + limits.t_max_s
        self.bfd = state

    @property
    def dead(self) -> bool:
        """Whether it is known not to carry packets."""
        return self.carrier is False or self.bfd in DOWN
