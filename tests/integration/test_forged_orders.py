"""Limit orders that are replayed or forged, by whom they can be, against an agent on a real, secured server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.limits import LimitReply, LimitUpdate, RowStatus
from schemas.roles import Role
from schemas.streams import APPS
from schemas.subjects import CFS, LIMIT_UPDATES
from services._runtime.bus.api import NotPermittedError, RequestRefusedError
from services._runtime.bus.nats import NatsBus
from services.agent.memory.growth import MIB
from services.agent.service import Agent
from services.agent.settings import AgentSettings
from tests.support.deadline import until
from tests.support.fake_backend import FakeBackend
from tests.support.limit_orders import reply_rows, reserve_order, update
from tests.support.secured_nats import SecuredNats
from tests.support.service_in_process import run_in_process

NODE, OTHER = "n1", "n2"
SPEC = AppSpec(name="shop", cpu_limit=1, memory_limit=1_000 * MIB)


class Lab:
    """An agent with one container, and buses of those who might order."""

    def __init__(self, server: SecuredNats, backend: FakeBackend) -> None:
        self.server = server
        self.backend = backend
        self.buses: dict[Role, NatsBus] = {}
        self.batches: list[CfsBatch] = []

    async def start(self) -> None:
        for role in (Role.OPERATOR, Role.ALLOCATOR):
            self.buses[role] = await self.server.bus(role)
        await self.buses[Role.OPERATOR].bucket(APPS).put("shop", SPEC)
        await self.buses[Role.OPERATOR].subscribe(CFS.pattern("tb"), lambda it: self.batches.append(it.message))
        self.container = self.backend.add("web", quota_us=20_000, limit_bytes=256 * MIB)
        self.container.run(0, memory_bytes=100 * MIB)

    @property
    def incarnation(self) -> int:
        return self.batches[-1].incarnation

    async def order(self, message: LimitUpdate, role: Role = Role.ALLOCATOR) -> LimitReply:
        reply = await self.buses[role].request(LIMIT_UPDATES.subject("tb", node=NODE), message, timeout_s=60)
        assert isinstance(reply, LimitReply)
        return reply

    async def row(self, wanted: tuple[int, int], **keywords: Any) -> RowStatus:
        """The status of an order for the container."""
        message = update({self.container.key: wanted}, **{"incarnation": self.incarnation, **keywords})
        return RowStatus(reply_rows(await self.order(message))[self.container.key]["status"])


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    backend = FakeBackend()
    monkeypatch.setattr("services.agent.service.build_backend", lambda _settings, _clock: backend)
    async with SecuredNats(tmp_path / "secrets", nodes=(NODE, OTHER)) as server:
        await server.declare()
        made = Lab(server, backend)
        await made.start()
        bus = await server.bus(Role.AGENT, NODE)
        async with run_in_process(Agent, AgentSettings.load({}, node=NODE), bus):
            await until(lambda: made.batches, what="the first batch")
            yield made
        for each in (bus, *made.buses.values()):
            await each.close(2)


async def test_replayed_orders_are_void(lab: Lab) -> None:
    assert await lab.row((50_000, 0), seq=1) is RowStatus.APPLIED
    assert await lab.row((30_000, 0), seq=2) is RowStatus.APPLIED

    assert await lab.row((50_000, 0), seq=1) is RowStatus.STALE_SEQ
    assert await lab.row((50_000, 0), seq=2) is RowStatus.STALE_SEQ
    assert await lab.row((50_000, 0), seq=9, epoch=0) is RowStatus.STALE_EPOCH
    earlier = update({lab.container.key: (50_000, 0)}, seq=9, incarnation=lab.incarnation - 1)
    elsewhere = update({lab.container.key: (50_000, 0)}, seq=9, incarnation=lab.incarnation, node=OTHER)
    assert (await lab.order(earlier)).rejection is not None
    with pytest.raises(RequestRefusedError, match="names another node than its subject"):
        await lab.order(elsewhere)
    assert lab.container.quota_us == 30_000


async def test_even_an_allocators_key_gets_nobody_beyond_what_is_announced(lab: Lab) -> None:
    """1 core and 1,000 MiB are."""
    assert await lab.row((100_001, 0), seq=1) is RowStatus.FAILED
    assert await lab.row((0, 1_001 * MIB), seq=2) is RowStatus.FAILED
    await lab.order(reserve_order(1_001 * MIB, seq=3, incarnation=lab.incarnation))
    assert lab.backend.reserves.read().get("shop") in {None, (0, 0)}
    assert await lab.row((50_000, 0), seq=4, apps=("bank",)) is RowStatus.STALE_EPOCH
    message = update({"stranger-0123456789ab": (50_000, 0)}, seq=5, incarnation=lab.incarnation)
    assert reply_rows(await lab.order(message))["stranger-0123456789ab"]["status"] == RowStatus.UNKNOWN_CONTAINER
    assert (lab.container.quota_us, lab.container.limit_bytes) == (20_000, 256 * MIB)

    assert await lab.row((100_000, 900 * MIB), seq=6) is RowStatus.APPLIED


async def test_what_is_announced_anew_holds_at_the_next_order(lab: Lab) -> None:
    """One that comes before it is known is refused, and has it looked up."""
    more = SPEC.model_copy(update={"cpu_limit": 2.0})
    await lab.buses[Role.OPERATOR].bucket(APPS).put("shop", more)
    seq = 0

    async def applied() -> bool:
        nonlocal seq
        seq += 1
        return await lab.row((150_000, 0), seq=seq) is RowStatus.APPLIED

    deadline_s = time.monotonic() + 60
    while not await applied():
        assert time.monotonic() < deadline_s
    assert lab.container.quota_us == 150_000


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.COLLECTOR, Role.ADVISOR, Role.OBSERVER])
async def test_others_cannot_order_at_all(lab: Lab, role: Role) -> None:
    forger = await lab.server.bus(role)
    forged = update({lab.container.key: (1_000, 0)}, seq=1, incarnation=lab.incarnation)

    with pytest.raises(NotPermittedError):
        await forger.request(LIMIT_UPDATES.subject("tb", node=NODE), forged, timeout_s=60)
    await forger.close(2)


async def test_nor_can_a_neighbour(lab: Lab) -> None:
    """Neither order, nor say anything in this node's name, on this node's subject or on its own."""
    neighbour = await lab.server.bus(Role.AGENT, OTHER)
    batches = len([each for each in lab.batches if each.app == "forged"])
    forged = lab.batches[-1].model_copy(update={"app": "forged"})

    message = update({lab.container.key: (1_000, 0)}, seq=1, incarnation=lab.incarnation)
    with pytest.raises(NotPermittedError):
        await neighbour.request(LIMIT_UPDATES.subject("tb", node=NODE), message, timeout_s=60)
    neighbour.publish(CFS.subject("tb", app="forged", node=NODE), forged)
    neighbour.publish(CFS.subject("tb", app="forged", node=OTHER), forged)
    neighbour.publish(CFS.subject("tb", app="forged", node=OTHER), forged.model_copy(update={"node": OTHER}))
    await until(lambda: any(each.app == "forged" for each in lab.batches), what="what it may say")

    assert [each.node for each in lab.batches if each.app == "forged"] == [OTHER] * (batches + 1)
    await neighbour.close(2)
