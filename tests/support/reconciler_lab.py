"""One reconciler on a kernel in memory, and everything that it tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.message import Message
from schemas.network import RouteEvent, TcEvent, TcObject, TcOperationKind
from schemas.streams import ROUTE_STREAM, TC_STREAM
from schemas.subjects import SubjectTemplate
from services._runtime.bus.api import Bus, Delivery
from services.reconciler.service import Reconciler
from services.reconciler.settings import ReconcilerSettings
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.fake_network import APPLICATION, PORT, FakeDaemons, FakeNetwork
from tests.support.service_in_process import run_in_process

PREF = 21_000


class ReconcilerLab:
    """One reconciler."""

    def __init__(self, state: Path, ours: Bus, theirs: Bus, **settings: Any) -> None:
        self.network = FakeNetwork()
        self.daemons = FakeDaemons()
        self.ours, self.bus = ours, theirs
        self.settings = ReconcilerSettings.load(
            {},
            **{
                "node": "n1",
                "ports": (f"rep0={APPLICATION}",),
                "state_directory": state,
                "path_audit": "off",
                "subject_root": theirs.root,
                **settings,
            },
        )
        self.tc: list[TcEvent] = []
        self.routes: list[RouteEvent] = []

    async def listen(self) -> None:
        """Begin to collect what is told."""

        async def take_tc(delivery: Delivery) -> None:
            assert isinstance(delivery.message, TcEvent)
            self.tc.append(delivery.message)

        async def take_route(delivery: Delivery) -> None:
            assert isinstance(delivery.message, RouteEvent)
            self.routes.append(delivery.message)

        await self.ours.replay(TC_STREAM, take_tc)
        await self.ours.replay(ROUTE_STREAM, take_route)

    def reconciler(self) -> Any:
        """Started inside of the block."""
        return run_in_process(Reconciler, self.settings, self.bus)

    def put_in_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Give the service our surroundings."""
        monkeypatch.setattr(Reconciler, "_network", lambda _self: self.network)
        monkeypatch.setattr(Reconciler, "_daemons", lambda _self: self.daemons)
        monkeypatch.setattr("services.reconciler.service.missing_capability", lambda _netns: None)
        # This machine's own routes are not ours to look after.
        monkeypatch.setattr(Reconciler, "_guard_fast_path", lambda _self: None)

    @property
    def rules(self) -> dict[str, str]:
        """Where each MAC's rule leads."""
        snapshot = self.network.seen()
        return {
            rule.mac or "": tunnel.destination
            for rule in snapshot.filters
            if rule.ifindex == PORT and rule.actions and (tunnel := rule.actions[0].tunnel) is not None
        }

    async def ask(self, template: SubjectTemplate, request: Message) -> Message:
        """A query."""
        return await self.ours.request(template.subject(self.ours.root, node="n1"), request, timeout_s=60)


def memory_lab(state: Path, **settings: Any) -> ReconcilerLab:
    """On a bus in memory."""
    broker = MemoryBroker()
    return ReconcilerLab(state, MemoryBus(broker), MemoryBus(broker), **settings)


def replayed(events: list[TcEvent]) -> dict[str, str]:
    """The rules that follow from what was told; fails where a pass or a part is missing."""
    rules: dict[str, str] = {}
    expected: dict[int, int] = {}
    for event in events:
        if event.part == 1:
            assert event.first_pass_id == expected.get(event.incarnation, 0) + 1
        expected[event.incarnation] = event.pass_id
        for operation in event.operations:
            if operation.object is not TcObject.FILTER or operation.errno:
                continue
            if operation.operation is TcOperationKind.DELETE:
                rules.pop(operation.mac, None)
            else:
                rules[operation.mac] = operation.after
    return rules
