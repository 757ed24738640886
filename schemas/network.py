"""Network edge: path events, and every tc rule written (thesis 3.4; design 5)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from schemas.message import Count, Message, renamed


class RouteKind(StrEnum):
    """Kind of a path event."""

    ROUTE = "route"
    """The kernel's next hops for a destination changed."""
    LINK = "link"
    """A link went up or down, came or vanished, or its carrier changed."""
    FDB = "fdb"
    """A remote MAC appeared, moved to another VTEP, or was withdrawn."""
    DISAGREEMENT = "disagreement"
    """Kernel, FRR and BFD name different next hops for a destination."""
    AGREEMENT = "agreement"
    """Kernel, FRR and BFD agree again."""
    OVERRIDE = "override"
    """The fast path installed a route without the failed next hops, ahead of FRR."""
    OVERRIDE_REMOVED = "override_removed"
    """The fast path removed its override: FRR's route is in force again."""
    FRR = "frr"
    """FRR's daemons became unreachable, or reachable again: meanwhile it is unknown whether paths agree."""
    FAST_PATH = "fast_path"
    """State of the fast path itself: started, input lost, flap damped, not converging; `cause` says which."""
    DRAIN = "drain"
    """An operator has drained an uplink (`interface`) for maintenance; repeated while that lasts."""
    UNDRAIN = "undrain"
    """The uplink is in use again."""

    @classmethod
    def _missing_(cls, value: object) -> RouteKind | None:
        """Values of 0.1, which streams may still hold."""
        renamed = {"release": cls.OVERRIDE_REMOVED}
        return renamed.get(value) if isinstance(value, str) else None


class RouteEvent(Message):
    """One change of a path on one node. Text fields that do not apply are empty."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.RouteEvent"

    kind: RouteKind
    node: str
    incarnation: Count
    """Start of the sender, wall clock in nanoseconds; `seq` counts from 1 in it."""
    seq: Count
    source: str
    """Part of the service that published it: ``watcher``, ``auditor``, ``guard`` or ``fast_path``."""
    time_ns: Count
    destination: str = ""
    """Prefix or VTEP (ROUTE, DISAGREEMENT, OVERRIDE...), or MAC (FDB)."""
    also: tuple[str, ...] = ()
    """Further destinations of the same event; at most 500."""
    interface: str = ""
    """LINK: the link. OVERRIDE: the failed uplink."""
    before: tuple[str, ...] = ()
    """Next hops as ``interface`` or ``gateway@interface``; FDB: the VTEP; LINK: its state."""
    after: tuple[str, ...] = ()
    frr: tuple[str, ...] = ()
    """DISAGREEMENT: next hops installed according to FRR."""
    bfd: tuple[str, ...] = ()
    """DISAGREEMENT: uplinks whose BFD session is up."""
    cause: str = ""
    """OVERRIDE, OVERRIDE_REMOVED: ``bfd``, ``carrier``, ``frr_converged``, ``fast_path_unresponsive``..."""
    peer: str = ""
    """OVERRIDE: the ToR's router id, or the VTEP that signalled it."""
    latency_us: Count = 0
    """OVERRIDE: trigger to the kernel's acknowledgement. OVERRIDE_REMOVED: duration of the override. AGREEMENT:
    duration of the disagreement."""
    vtep: str = ""
    """The sender's own VTEP, if known."""
    peer_ack_us: Count = 0
    """OVERRIDE: from the trigger to the last peer's acknowledgement; 0: no peer was signalled, or none replied."""
    alarm: bool = False
    """Whether it needs an operator's attention."""
    reason: str = ""
    """A sentence with the measured values."""


class TcOperationKind(StrEnum):
    """A write."""

    ADD = "add"
    REPLACE = "replace"
    DELETE = "delete"


class TcObject(StrEnum):
    """Kind of object written."""

    CLSACT = "clsact"
    ACTION = "action"
    FILTER = "filter"
    FDB = "fdb"
    """A static entry for an application's own MAC."""


class TcOperation(Message):
    """One write to the kernel and its outcome."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.TcOperation"

    operation: TcOperationKind
    object: TcObject
    device: str = ""
    ifindex: int = 0
    pref: int = 0
    handle: int = 0
    index: int = 0
    """Of an action."""
    mac: str = ""
    before: str = ""
    """State before: VTEP of a filter, description of an action; empty: none."""
    after: str = ""
    errno: int = 0
    """0: success."""
    attempt: int = 1
    in_hw: bool | None = None
    reason: str = ""
    """Why it was written."""
    pass_id: Count = 0
    """In an event of several reconciles: which one."""


class TcEvent(Message):
    """One full reconcile that wrote, failed to write, or changed its result; long ones are split into parts."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.TcEvent"

    node: str
    incarnation: Count
    pass_id: Count
    """Counts from 1 in an incarnation, without gaps: reconciles without changes have none."""
    first_pass_id: Count = 0
    """Below `pass_id` if reconciles were merged while the bus was unavailable; else equal to it."""
    part: Count = 1
    parts: Count = 1
    time_ns: Count
    causes: dict[str, int]
    """What triggered the reconcile: netlink events by kind, ``timer``, ``overrun``, ``signal``, ``start``..."""
    digest_before: str = ""
    """Of forwarding state and rules found by the reconcile; equal digests: equal content."""
    digest_after: str = ""
    desired: Count = 0
    """Desired filters."""
    installed: Count = 0
    """Managed filters that are in sync, verified."""
    unmanaged: Annotated[Count, renamed("unmanaged", "foreign")] = 0
    """Unmanaged filters on the managed ports."""
    in_hw: Count = 0
    lag_us: Count = 0
    """From the first event to the verified result."""
    duration_us: Count = 0
    verified: bool = False
    """A second dump equalled the desired state."""
    operations: tuple[TcOperation, ...] = ()
    problem: str = ""
    """Remaining difference and its cause; empty: none."""
    lost_operations: Count = 0
    """Not published: the buffer was full while the bus was unavailable."""
    previous_incarnation: Count = 0
    """`pass_id` 1 only: the previous incarnation on this host; 0: none since the host's boot."""
    previous_pass_id: Count = 0
    """`pass_id` 1 only: the last reconcile of that incarnation that may have written. A reader that lacks it misses
    operations."""
    gap: bool = False
    """`pass_id` 1 only: that incarnation ended with events that the bus had not acknowledged."""


class RulesRequest(Message):
    """Query for the rules installed on a node."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.RulesRequest"

    device: str | None = None
    limit: int = 1_000
    offset: int = 0


class RuleState(Message):
    """One rule, installed or desired."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.RuleState"

    device: str
    mac: str
    vtep: str
    vni: int
    pref: int = 0
    handle: int = 0
    index: int = 0
    in_hw: bool | None = None
    managed: Annotated[bool, renamed("managed", "ours")] = True
    note: str = ""


class RulesReply(Message):
    """Reply to RulesRequest."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.RulesReply"

    node: str
    total: int
    rules: tuple[RuleState, ...]


class DiffRequest(Message):
    """Query for the writes that a full reconcile would do now; nothing is written."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.DiffRequest"


class DiffReply(Message):
    """Reply to DiffRequest; no operations: the kernel is in sync."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.DiffReply"

    node: str
    desired: int
    installed: int
    unmanaged: Annotated[int, renamed("unmanaged", "foreign")]
    operations: tuple[TcOperation, ...]
    total: int
    """Number of operations; at most 1,000 are listed."""
    problem: str = ""


class ReconcilerInfo(Message):
    """Registration of a reconciler under its node's name, in KV with a time to live."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.ReconcilerInfo"

    node: str
    incarnation: int
    time_ns: int
    version: str
    holder: str
    """As in `NodeInfo`."""


class NetworkStateRequest(Message):
    """Query for the state of a node's network edge."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.NetworkStateRequest"


class PathState(Message):
    """One destination and its next hops according to kernel, FRR and BFD."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.PathState"

    destination: str
    kernel: tuple[str, ...]
    frr: tuple[str, ...] | None
    """None: FRR does not answer."""
    bfd_up: tuple[str, ...] | None
    agree: bool
    override: tuple[str, ...] = ()
    """Next hops in the fast path's table during an override."""
    reason: str = ""
    suspect: str = ""
    """Other hosts that signalled this VTEP as failed or drained. A hint only: `agree` does not depend on it."""


class NetworkStateReply(Message):
    """Reply to NetworkStateRequest."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.NetworkStateReply"

    node: str
    incarnation: int
    offload: str
    """The policy: none, prefer or require."""
    full_reconciles: Annotated[int, renamed("full_reconciles", "passes")]
    writes: int
    last_reconcile_age_s: Annotated[float, renamed("last_reconcile_age_s", "last_pass_age_s")]
    ports: tuple[str, ...]
    encapsulation_device: str
    vteps: tuple[str, ...]
    macs: int
    installed: int
    in_hw: int
    not_in_hw: int
    unmanaged: Annotated[int, renamed("unmanaged", "foreign")]
    paths: tuple[PathState, ...]
    problems: tuple[str, ...]
    drained: tuple[str, ...] = ()
    """BGP neighbours (uplinks, where unnumbered) drained by `turnbuckle fabric drain`."""
