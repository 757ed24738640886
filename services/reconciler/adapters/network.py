"""`services.reconciler.ports.Network` on the kernel: opened when first needed, and anew after a failure."""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Final, TypeVar

from services._host.kernel_support import CannotTryError, missing_features
from services._host.netlink.attributes import NetlinkError
from services._host.netlink.constants import AF_BRIDGE, WATCHED, Rtm
from services._host.netlink.messages import Message
from services._host.netlink.objects import Snapshot
from services._host.netlink.subscription import Subscription
from services.reconciler.adapters.kernel import Kernel, Probe
from services.reconciler.core.operation import Operation
from services.reconciler.ports import Happened, Paths, UnreadableError

TRY_AGAIN_S: Final = 10.0
"""Between attempts at what the kernel lacked: a module may be installed meanwhile."""
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

    def read(self) -> Happened:
        """Up to about a thousand events."""
        try:
            received = self._subscription.read(_READ_AT_ONCE)
        except OSError as error:
            raise UnreadableError(f"kernel events cannot be read: {error.strerror or error}") from error
        own = self._own_port()
        causes = Counter(cause_of(message) for message in received.messages if not own or message.port_id != own)
        causes.pop("", None)
        return Happened(dict(causes), received.overrun)

    def close(self) -> None:
        """Let go."""
        self._subscription.close()


def cause_of(message: Message) -> str:
    """What kind of change an event tells of; empty: none that matters, such as a neighbour that was heard again."""
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
        self._lacks: str | None = None
        self._try_again_s = 0.0
        """Monotonic; infinite once everything was found to be there."""

    def snapshot(self, ports: Collection[int] | None = None) -> Snapshot:
        """Everything."""
        return self._call(lambda kernel: kernel.snapshot(ports))

    def probe(self) -> Hashable:
        """What is cheap to read."""
        return self._call(lambda kernel: kernel.probe())

    def probe_of(self, snapshot: Snapshot) -> Hashable:
        """The same from a look."""
        known = self._probe_of
        if known is None or known[0] is not snapshot:  # asked each second, and hashing thousands of actions is dear
            links, actions = frozenset(snapshot.links), frozenset(snapshot.actions)
            known = self._probe_of = (snapshot, Probe(links, snapshot.clsact, snapshot.ingress, actions))
        return known[1]

    def paths(self) -> Paths:
        """Links, routes, and which tables count."""
        return self._call(lambda kernel: Paths(kernel.links(), kernel.routes(), kernel.lookups()))

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        """Write in order."""
        return self._call(lambda kernel: kernel.apply(operations))

    def unsupported(self) -> str | None:
        """Tried out in a namespace of its own, at most every ten seconds, until all is there."""
        if time.monotonic() < self._try_again_s:
            return self._lacks
        try:
            missing = missing_features()
        except CannotTryError:
            missing = {}
        if not missing:
            self._lacks, self._try_again_s = None, float("inf")
            return None
        self._try_again_s = time.monotonic() + TRY_AGAIN_S
        lacking = ", ".join(f"{feature.module} ({reason})" for feature, reason in missing.items())
        modules = " ".join(feature.module for feature in missing)
        options = ", ".join(feature.option for feature in missing)
        self._lacks = (
            f"this kernel lacks {lacking}: nothing is written, packets go by bridge and VTEP; "
            f"modprobe {modules}, or a kernel with {options}"
        )
        return self._lacks

    def subscribe(self) -> KernelEvents:
        """The kernel's events from now on."""
        subscription = self._call(lambda kernel: kernel.subscribe(WATCHED, receive_bytes=self._event_buffer_bytes))
        return KernelEvents(subscription, lambda: self._own_port)

    def close(self) -> None:
        """Let go."""
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
