from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from services._runtime.bus.embedded_server import EmbeddedNats
from tests.support.bus_lab import BusLab, MemoryLab, NatsLab


@pytest.fixture(scope="session")
def nats_server() -> Iterator[EmbeddedNats]:
    """One real server for the session; a test that stops it starts it again."""
    server = EmbeddedNats()
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture(params=["memory", "nats"])
async def lab(request: pytest.FixtureRequest, nats_server: EmbeddedNats) -> AsyncIterator[BusLab]:
    """Both buses, one after the other."""
    made: BusLab = MemoryLab() if request.param == "memory" else NatsLab(nats_server)
    yield made
    await made.close()
