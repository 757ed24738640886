"""A reconciler's surroundings in memory: the model kernel with events, and FRR's answers as a test sets them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

from services._edge.frr import FrrError
from services._host.netlink.objects import FdbEntry, Link, NextHop, Route, Snapshot, Vxlan
from services.reconciler.core.operation import Operation
from services.reconciler.ports import EventCounts, RouteState, UnreadableError
from tests.support.model_kernel import ModelKernel

BRIDGE, VTEP, ENCAPSULATION, PORT, UPLINKS = 10, 11, 12, 13, (21, 22)
LOCAL, APPLICATION = "10.255.0.1", "02:00:00:00:00:01"


class FakeEvents:
    """A pipe that is readable while events wait."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self.causes: Counter[str] = Counter()
        self.overrun = False
        self.closed = False

    def happen(self, cause: str, count: int = 1) -> None:
        self.causes[cause] += count
        os.write(self._write, b"!")

    def fileno(self) -> int:
        return self._read

    def read(self) -> EventCounts:
        os.read(self._read, 1 << 16)
        causes, overrun = dict(self.causes), self.overrun
        self.causes, self.overrun = Counter(), False
        return EventCounts(causes, overrun)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._read)
            os.close(self._write)


def mac(number: int) -> str:
    """A remote application's."""
    return f"02:01:00:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}"


@dataclass
class FakeNetwork:
    """`services.reconciler.ports.Network` on a model kernel: one bridge, one port, two uplinks."""

    model: ModelKernel = field(default_factory=ModelKernel)
    events: FakeEvents | None = None
    unreadable: str = ""
    """Why nothing can be read."""
    lacks: str | None = None
    lookups: tuple[int, ...] = (255, 254, 253)
    looks: int = 0
    route_only: int = 0
    probes: int = 0
    closed: bool = False
    before_apply: Callable[[], None] = lambda: None
    lock: RLock = field(default_factory=RLock)
    """The reconciler works in a thread of its own."""

    def __post_init__(self) -> None:
        vxlan = Vxlan(100, LOCAL, 4789, external=False)
        external = Vxlan(0, LOCAL, 4790, external=True)
        for link in (
            Link(BRIDGE, "br0", "bridge", "02:ff:00:00:00:01", 1450, up=True, carrier=True),
            Link(VTEP, "vx100", "vxlan", "02:ff:00:00:00:02", 1450, up=True, carrier=True, master=BRIDGE, vxlan=vxlan),
            Link(ENCAPSULATION, "vxenc0", "vxlan", "02:ff:00:00:00:03", 1450, up=True, carrier=True, vxlan=external),
            Link(PORT, "rep0", "veth", "02:ff:00:00:00:04", 1450, up=True, carrier=True, master=BRIDGE),
            *(Link(i, f"p{i - 20}", "veth", f"02:ff:00:00:01:{i}", 1500, up=True, carrier=True) for i in UPLINKS),
        ):
            self.model.add_link(link)

    # What zebra does.

    def learn(self, address: str, vtep: str) -> None:
        """A remote MAC is behind a VTEP."""
        with self.lock:
            self.model.put_row(FdbEntry(VTEP, address, own=False, extern_learn=True))
            self.model.put_row(FdbEntry(VTEP, address, own=True, destination=vtep, extern_learn=True))
        self.happen("fdb", 2)

    def forget(self, address: str) -> None:
        """It was withdrawn."""
        with self.lock:
            self.model.drop_rows(VTEP, address, own=True)
            self.model.drop_rows(VTEP, address, own=False)
        self.happen("fdb", 2)

    def route(self, vtep: str, *uplinks: int, table: int = 254) -> None:
        """The next hops of a VTEP."""
        prefix = f"{vtep}/32"
        self.model.routes[:] = [r for r in self.model.routes if (r.destination, r.table) != (prefix, table)]
        if uplinks:
            hops = tuple(NextHop(ifindex, "169.254.0.1") for ifindex in uplinks)
            self.model.routes.append(Route(prefix, table, 186, hops))
        self.happen("route")

    def happen(self, cause: str, count: int = 1) -> None:
        """An event, if anybody listens."""
        if self.events is not None and not self.events.closed:
            self.events.happen(cause, count)

    def seen(self) -> Snapshot:
        """What is in the kernel."""
        with self.lock:
            return replace(self.model.snapshot(), lookups=self.lookups)

    # What the reconciler does.

    def snapshot(self, ports: Collection[int] | None = None) -> Snapshot:
        del ports
        self._check()
        self.looks += 1
        return self.seen()

    def probe(self) -> Hashable:
        self._check()
        self.probes += 1
        return self.probe_of(self.seen())

    def probe_of(self, snapshot: Snapshot) -> Hashable:
        return (frozenset(snapshot.links), snapshot.clsact, frozenset(snapshot.actions))

    def route_state(self) -> RouteState:
        self._check()
        self.route_only += 1
        snapshot = self.seen()
        return RouteState(snapshot.links, snapshot.routes, snapshot.lookups)

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        self._check()
        self.before_apply()
        with self.lock:
            return self.model.apply(operations)

    def unsupported(self) -> str | None:
        return self.lacks

    def subscribe(self) -> FakeEvents:
        self._check()
        self.events = FakeEvents()
        return self.events

    def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        if self.unreadable:
            raise UnreadableError(self.unreadable)


@dataclass
class FakeDaemons:
    """FRR that says what a test wants."""

    routes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Interfaces by VTEP."""
    sessions: dict[str, str] = field(default_factory=dict)
    """State by interface."""
    inaccessible: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By VTEP: uplinks over which bgpd has a path that it does not use."""
    running: str = ""
    """Of bgpd's configuration."""
    away: str = ""
    questions: int = 0

    async def ask(self, daemon: str, command: str) -> str:
        if self.away:
            raise FrrError(f"{daemon} {self.away}")
        assert command == "show running-config"
        return self.running

    async def show_json(self, daemon: str, command: str) -> Any:
        self.questions += 1
        if self.away:
            raise FrrError(f"{daemon} {self.away}")
        if daemon == "bgpd":
            return self._paths(command.split()[4].partition("/")[0])
        if "bfd" in command:
            return [{"peer": "fe80::1", "interface": name, "status": state} for name, state in self.sessions.items()]
        return {
            f"{vtep}/32": [
                {
                    "selected": True,
                    "nexthops": [
                        {"fib": True, "ip": "fe80::1", "afi": "ipv6", "interfaceName": name} for name in interfaces
                    ],
                }
            ]
            for vtep, interfaces in self.routes.items()
        }

    def _paths(self, vtep: str) -> dict[str, Any]:
        used = dict.fromkeys(self.routes.get(vtep, ()), True)
        return {
            "prefix": f"{vtep}/32",
            "paths": [
                {
                    "valid": accessible,
                    "nexthops": [{"ip": "fe80::1", "afi": "ipv6", "scope": "link-local", "accessible": accessible}],
                    "peer": {"peerId": "fe80::1", "interface": name, "type": "external"},
                }
                for name, accessible in {**used, **dict.fromkeys(self.inaccessible.get(vtep, ()), False)}.items()
            ],
        }
