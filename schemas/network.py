"""Network edge: what happened to paths, and every tc rule written (thesis 3.4; design 5)."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from schemas.message import Count, Message


class RouteKind(StrEnum):
    """What happened to a path, or to what is known of it."""

    ROUTE = "route"
    """The kernel's next hops for a destination changed."""
    LINK = "link"
    """A link went up or down, came or vanished, or its carrier changed."""
    FDB = "fdb"
    """A remote MAC appeared, moved to another VTEP, or was withdrawn."""
    DISAGREEMENT = "disagreement"
    """Kernel, FRR and BFD name different next hops for a destination."""
    AGREEMENT = "agreement"
    """They agree again."""
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
    """Further destinations to which the very same happened at the same time; at most 500."""
    interface: str = ""
    """LINK: the link. OVERRIDE: the uplink that is dead."""
    before: tuple[str, ...] = ()
    """Next hops as ``interface`` or ``gateway@interface``; FDB: the VTEP; LINK: its state."""
    after: tuple[str, ...] = ()
    frr: tuple[str, ...] = ()
    """DISAGREEMENT: what FRR says is installed."""
    bfd: tuple[str, ...] = ()
    """DISAGREEMENT: uplinks whose BFD session is up."""
    cause: str = ""
    """OVERRIDE, OVERRIDE_REMOVED: ``bfd``, ``carrier``, ``frr_converged``, ``fast_path_unresponsive``..."""
    peer: str = ""
    """OVERRIDE: the ToR's router id, or the VTEP that signalled it."""
    latency_us: Count = 0
    """OVERRIDE: trigger to the kernel's acknowledgement. RELEASE: how long it was held. AGREEMENT: how long not."""
    vtep: str = ""
    """The sender's own, where it knows it: what others send to."""
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
    """What is written."""

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
    """What held: VTEP of a filter, meaning of an action; empty: nothing."""
    after: str = ""
    errno: int = 0
    """0: done."""
    attempt: int = 1
    in_hw: bool | None = None
    reason: str = ""
    """Why it was due."""
    pass_id: Count = 0
    """In an event of several passes: which one."""


class TcEvent(Message):
    """One reconcile pass that wrote, failed to write, or whose result changed; long ones are split into parts."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.TcEvent"

    node: str
    incarnation: Count
    pass_id: Count
    """Counts from 1 in an incarnation, without gaps: passes without changes have none."""
    first_pass_id: Count = 0
    """Below `pass_id` where passes waited for the bus and were merged; else equal to it."""
    part: Count = 1
    parts: Count = 1
    time_ns: Count
    causes: dict[str, int]
    """What triggered the pass: netlink events by kind, ``timer``, ``overrun``, ``signal``, ``start``..."""
    digest_before: str = ""
    """Of the forwarding state that the pass saw, and of the rules found; equal digests: equal content."""
    digest_after: str = ""
    desired: Count = 0
    """Filters that should be there."""
    installed: Count = 0
    """Managed filters that are in sync, verified."""
    foreign: Count = 0
    """Unmanaged filters on the managed ports."""
    in_hw: Count = 0
    lag_us: Count = 0
    """From the first event to the verified end."""
    duration_us: Count = 0
    verified: bool = False
    """A second dump showed what was desired."""
    operations: tuple[TcOperation, ...] = ()
    problem: str = ""
    """What still differs, and why; empty: nothing."""
    lost_operations: Count = 0
    """Not published, because more waited for the bus than the buffer holds."""
    previous_incarnation: Count = 0
    """Pass 1 only: the incarnation before on the same host; 0: there was none since the host's start."""
    previous_pass_id: Count = 0
    """Pass 1 only: the last pass of that incarnation that may have written. A reader without it misses operations."""
    gap: bool = False
    """Pass 1 only: the bus had not acknowledged all passes of that incarnation when it ended."""


class RulesRequest(Message):
    """Ask a node's reconciler for the rules that are installed."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.RulesRequest"

    device: str | None = None
    limit: int = 1_000
    offset: int = 0


class RuleState(Message):
    """One rule, as installed or as desired."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.RuleState"

    device: str
    mac: str
    vtep: str
    vni: int
    pref: int = 0
    handle: int = 0
    index: int = 0
    in_hw: bool | None = None
    ours: bool = True
    note: str = ""


class RulesReply(Message):
    """Answer to RulesRequest."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.RulesReply"

    node: str
    total: int
    rules: tuple[RuleState, ...]


class DiffRequest(Message):
    """Ask a node's reconciler what it would write now; nothing is written."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.DiffRequest"


class DiffReply(Message):
    """Answer to DiffRequest: empty operations mean that the kernel holds what it should."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.DiffReply"

    node: str
    desired: int
    installed: int
    foreign: int
    operations: tuple[TcOperation, ...]
    total: int
    """Of the operations; at most 1,000 are listed."""
    problem: str = ""


class ReconcilerInfo(Message):
    """Registration of a reconciler under its node's name, kept in KV with a time to live."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.ReconcilerInfo"

    node: str
    incarnation: int
    time_ns: int
    version: str
    holder: str
    """As in `NodeInfo`."""


class NetworkStateRequest(Message):
    """Ask a node's reconciler for what it sees."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.NetworkStateRequest"


class PathState(Message):
    """One destination and its next hops in the eyes of kernel, FRR and BFD."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.PathState"

    destination: str
    kernel: tuple[str, ...]
    frr: tuple[str, ...] | None
    """None: FRR does not answer."""
    bfd_up: tuple[str, ...] | None
    agree: bool
    override: tuple[str, ...] = ()
    """Next hops in the fast path's table, while it overrides."""
    reason: str = ""
    suspect: str = ""
    """Which other hosts call this VTEP in trouble, or drained. A hint only: `agree` does not depend on it."""


class NetworkStateReply(Message):
    """Answer to NetworkStateRequest."""

    type_name: ClassVar[str] = "turnbuckle.network.v1.NetworkStateReply"

    node: str
    incarnation: int
    offload: str
    """The policy: none, prefer or require."""
    passes: int
    writes: int
    last_pass_age_s: float
    ports: tuple[str, ...]
    encapsulation_device: str
    vteps: tuple[str, ...]
    macs: int
    installed: int
    in_hw: int
    not_in_hw: int
    foreign: int
    paths: tuple[PathState, ...]
    problems: tuple[str, ...]
    drained: tuple[str, ...] = ()
    """BGP neighbours (uplinks, where unnumbered) that `turnbuckle fabric drain` has taken out of use."""
