"""`services.reconciler.ports.Network` over netlink: sockets are opened on first use, and again after a failure."""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from services._edge.kernel_support import CannotTryError, missing_features
from services._host.netlink.attributes import NetlinkError
from services._host.netlink.constants import AF_BRIDGE, WATCHED, Rtm
from services._host.netlink.messages import Message
from services._host.netlink.objects import Snapshot
from services._host.netlink.subscription import Subscription
from services.reconciler.adapters.kernel import Kernel, Probe
from services.reconciler.core.operation import Operation
from services.reconciler.ports import EventCounts, RouteState, UnreadableError

RETRY_S: Final = 10.0
"""Between two tests for missing kernel features: a module may be installed meanwhile."""
_READ_AT_ONCE: Final = 1_024
_CAUSES: Final[dict[int, str]] = {
    Rtm.NEWLINK: "link",
    Rtm.DELLINK: "link",
    Rtm.NEWROUTE: "route",
    Rtm.DELROUTE: "route",
    Rtm.NEWRULE: "rule",
    Rtm.DELRULE: "rule",
    Rtm.NEWNEXTHOP: "nexthop",
    Rtm.DELNEXTHOP: "nexthop",
    Rtm.NEWQDISC: "tc",
    Rtm.DELQDISC: "tc",
    Rtm.NEWTFILTER: "tc",
    Rtm.DELTFILTER: "tc",
    Rtm.NEWCHAIN: "tc",
    Rtm.DELCHAIN: "tc",
    Rtm.NEWACTION: "tc",
    Rtm.DELACTION: "tc",
}
_Value = TypeVar("_Value")


class KernelEvents:
    """Events of the watched groups, by kind."""

    def __init__(self, subscription: Subscription, own_port: Callable[[], int]) -> None:
        self._subscription = subscription
        self._own_port = own_port

    def fileno(self) -> int:
        """For ``loop.add_reader``."""
        return self._subscription.fileno()

    def read(self) -> EventCounts:
        """Up to about a thousand events."""
        try:
            received = self._subscription.read(_READ_AT_ONCE)
        except OSError as error:
            raise UnreadableError(f"kernel events cannot be read: {error.strerror or error}") from error
        own = self._own_port()
        causes = Counter(cause_of(message) for message in received.messages if not own or message.port_id != own)
        causes.pop("", None)
        return EventCounts(dict(causes), received.overrun)

    def close(self) -> None:
        """Close the socket."""
        self._subscription.close()


def cause_of(message: Message) -> str:
    """The kind of change of an event; empty: irrelevant, such as a confirmed neighbour."""
    if message.kind in {Rtm.NEWNEIGH, Rtm.DELNEIGH}:
        return "fdb" if message.payload[:1] == bytes((AF_BRIDGE,)) else ""
    return _CAUSES.get(message.kind, "")


class KernelNetwork:
    """One namespace."""

    def __init__(self, netns: str | None, *, event_buffer_bytes: int) -> None:
        self._netns = netns
        self._event_buffer_bytes = event_buffer_bytes
        self._kernel: Kernel | None = None
        self._own_port = 0
        self._probe_of: tuple[Snapshot, Probe] | None = None
        self._unsupported: str | None = None
        self._retry_s = 0.0
        """Monotonic; infinite once all features were found."""

    def snapshot(self, ports: Collection[int] | None = None) -> Snapshot:
        """Dump everything."""
        return self._call(lambda kernel: kernel.snapshot(ports))

    def probe(self) -> Hashable:
        """Dump what is cheap to read."""
        return self._call(lambda kernel: kernel.probe())

    def probe_of(self, snapshot: Snapshot) -> Hashable:
        """The probe that corresponds to a snapshot."""
        known = self._probe_of
        if known is None or known[0] is not snapshot:  # called each second: hashing thousands of actions is expensive
            links, actions = frozenset(snapshot.links), frozenset(snapshot.actions)
            known = self._probe_of = (snapshot, Probe(links, snapshot.clsact, snapshot.ingress, actions))
        return known[1]

    def route_state(self) -> RouteState:
        """Dump links, routes, and the tables of the rules."""
        return self._call(lambda kernel: RouteState(kernel.links(), kernel.routes(), kernel.lookups()))

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        """Write in order."""
        return self._call(lambda kernel: kernel.apply(operations))

    def unsupported(self) -> str | None:
        """Tested in a namespace of its own, at most every ten seconds, until nothing is missing."""
        if time.monotonic() < self._retry_s:
            return self._unsupported
        try:
            missing = missing_features()
        except CannotTryError:
            missing = {}
        if not missing:
            self._unsupported, self._retry_s = None, float("inf")
            return None
        self._retry_s = time.monotonic() + RETRY_S
        lacking = ", ".join(f"{feature.module} ({reason})" for feature, reason in missing.items())
        modules = " ".join(feature.module for feature in missing)
        options = ", ".join(feature.option for feature in missing)
        self._unsupported = (
            f"this kernel lacks {lacking}: nothing is written, packets go by bridge and VTEP; "
            f"modprobe {modules}, or a kernel with {options}"
        )
        return self._unsupported

    def subscribe(self) -> KernelEvents:
        """Subscribe to the kernel's events."""
        subscription = self._call(lambda kernel: kernel.subscribe(WATCHED, receive_bytes=self._event_buffer_bytes))
        return KernelEvents(subscription, lambda: self._own_port)

    def close(self) -> None:
        """Close the sockets."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def _call(self, work: Callable[[Kernel], _Value]) -> _Value:
        try:
            if self._kernel is None:
                self._kernel = Kernel(self._netns)
            self._own_port = self._kernel.port_id
            return work(self._kernel)
        except NetlinkError as error:
            self.close()
            raise UnreadableError(str(error)) from error
        except OSError as error:
            self.close()
            raise UnreadableError(self._explain(error)) from error

    def _explain(self, error: OSError) -> str:
        if error.errno in {errno.ENOENT, errno.EINVAL} and self._netns is not None and error.filename:
            return f"there is no network namespace {self._netns!r}: turnbuckle fabric up, or ip netns add {self._netns}"
        if error.errno in {errno.EPERM, errno.EACCES}:
            return f"not permitted to manage the network ({error.strerror}): run as root, or with CAP_NET_ADMIN"
        return f"the kernel does not answer: {error.strerror or error}"


_STATUS: Final = Path("/proc/self/status")
NET_ADMIN: Final = 12
SYS_ADMIN: Final = 21


def missing_capability(netns: str | None, status: Path = _STATUS) -> str | None:
    """The missing capability, with its remedy; None: all present."""
    text = status.read_text(encoding="ascii", errors="replace")
    line = next((line for line in text.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    held = int(line.split()[1], 16)
    if not held >> NET_ADMIN & 1:
        return (
            "no right to write tc rules (CAP_NET_ADMIN): run as root, or with AmbientCapabilities=CAP_NET_ADMIN in "
            "the unit; nothing was changed"
        )
    if netns is not None and not held >> SYS_ADMIN & 1:
        return (
            f"no right to enter the network namespace {netns!r} (CAP_SYS_ADMIN): run as root, or start the reconciler "
            "in it and unset TURNBUCKLE_RECONCILER__NETNS; nothing was changed"
        )
    return None
