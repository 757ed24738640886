"""What the reconciler's loop needs of the kernel and of FRR, as Protocols: adapters and test doubles implement them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from services._host.netlink.objects import Link, Route, Snapshot
from services.reconciler.core.operation import Operation


class UnreadableError(Exception):
    """Nothing can be said about the kernel's state now; the message says why, and what to do where that is known."""


class Paths(NamedTuple):
    """Fields of a `Snapshot` that say which way packets go."""

    links: tuple[Link, ...]
    routes: tuple[Route, ...]
    lookups: tuple[int, ...]


class Network(Protocol):
    """One network namespace. Blocks for as long as the kernel takes: never called on the event loop.

    All methods raise `UnreadableError`.
    """

    def snapshot(self, ports: Collection[int] | None = None) -> Snapshot:
        """Everything, with the filters of these ports (ifindexes; None: of every device with a clsact qdisc)."""

    def probe(self) -> Hashable:
        """What is cheap to read; equal probes: the same links, hooks and actions, bound by as many filters."""

    def probe_of(self, snapshot: Snapshot) -> Hashable:
        """What `probe` would have shown at a look. Does not block."""

    def paths(self) -> Paths:
        """All that changes at an edge fault, and nothing else."""

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        """Write in order; the errno of each, 0 for done. One that fails stops none of the others."""

    def unsupported(self) -> str | None:
        """What this kernel lacks for any rule at all, with its remedy; None: nothing, or it cannot be tried."""

    def subscribe(self) -> Events:
        """The kernel's events from now on."""

    def close(self) -> None:
        """Let go of the sockets; twice does no harm."""


@dataclass(frozen=True, slots=True)
class Happened:
    """What a look at the subscription brought."""

    causes: dict[str, int]
    """By kind: ``link``, ``fdb``, ``route``, ``rule``, ``nexthop``, ``tc``. Those of own writes are left out."""
    overrun: bool = False
    """Events were lost (ENOBUFS): only a full look helps."""


class Events(Protocol):
    """The kernel's events. Never waits."""

    def fileno(self) -> int:
        """Readable when there is something."""

    def read(self) -> Happened:
        """What is there, up to some thousand events; more stay readable. Raises `UnreadableError`."""

    def close(self) -> None:
        """Let go of the socket."""


class Daemons(Protocol):
    """FRR's daemons."""

    async def show_json(self, daemon: str, command: str) -> Any:
        """The parsed answer of one daemon to a show command. Raises `services._host.frr.FrrError`."""

    async def ask(self, daemon: str, command: str) -> str:
        """The answer of one daemon as text. Raises `services._host.frr.FrrError`."""
