"""Protocols of the reconciler's inputs and outputs, the kernel and FRR; adapters and test doubles implement them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from services._host.netlink.objects import Link, Route, Snapshot
from services.reconciler.core.operation import Operation


class UnreadableError(Exception):
    """The kernel's state cannot be read; the message gives the reason, and the remedy where one is known."""


class MalformedReplyError(Exception):
    """A reply of one of FRR's daemons has another form than expected."""


class RouteState(NamedTuple):
    """Fields of a `Snapshot` that determine routing: links, routes, rules' tables."""

    links: tuple[Link, ...]
    routes: tuple[Route, ...]
    lookups: tuple[int, ...]


class Network(Protocol):
    """Netlink access to one network namespace. Blocks until the kernel answers: not for the event loop.

    All methods raise `UnreadableError`.
    """

    def snapshot(self, ports: Collection[int] | None = None) -> Snapshot:
        """Dump everything; filters of these ports only (ifindexes; None: of every device with a clsact qdisc)."""

    def probe(self) -> Hashable:
        """Dump what is cheap to read; equal probes: the same links, hooks and actions, bound by as many filters."""

    def probe_of(self, snapshot: Snapshot) -> Hashable:
        """The value of `probe` that corresponds to a snapshot. Does not block."""

    def route_state(self) -> RouteState:
        """Dump only what an edge fault changes: links, routes, rules."""

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        """Write in order; returns the errno of each, 0 for success. A failed write does not stop the others."""

    def unsupported(self) -> str | None:
        """Missing kernel features without which no rule can exist, with the remedy; None: none known."""

    def subscribe(self) -> Events:
        """Subscribe to the kernel's events."""

    def close(self) -> None:
        """Close the sockets. Idempotent."""


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Kernel events of one read, counted by cause."""

    causes: dict[str, int]
    """By kind: ``link``, ``fdb``, ``route``, ``rule``, ``nexthop``, ``tc``. Events of own writes are excluded."""
    overrun: bool = False
    """Events were lost (ENOBUFS): a full reconcile is required."""


class Events(Protocol):
    """Subscription to kernel events. Non-blocking."""

    def fileno(self) -> int:
        """Readable when events are queued."""

    def read(self) -> EventCounts:
        """Read up to about a thousand events; more stay readable. Raises `UnreadableError`."""

    def close(self) -> None:
        """Close the socket."""


class FrrDaemons(Protocol):
    """Queries to FRR's daemons."""

    async def show_json(self, daemon: str, command: str) -> Any:
        """The parsed answer of one daemon to a show command. Raises `services._edge.frr.FrrError`."""

    async def ask(self, daemon: str, command: str) -> str:
        """The answer of one daemon as text. Raises `services._edge.frr.FrrError`."""
