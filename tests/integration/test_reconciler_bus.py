"""The reconciler and a real NATS server: hundreds of passes without it, told afterwards, complete and in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.network import NetworkStateReply, NetworkStateRequest, TcEvent
from schemas.streams import TC_STREAM
from schemas.subjects import RECONCILER_STATE, TC_EVENTS
from services._runtime.nats_history import read_stored
from services._runtime.nats_server import EmbeddedNats
from tests.support.bus_lab import NatsLab
from tests.support.deadline import until
from tests.support.fake_network import mac
from tests.support.reconciler_lab import ReconcilerLab, replayed

OTHER = "10.255.0.3"


@pytest.fixture
async def nats() -> AsyncIterator[NatsLab]:
    async with EmbeddedNats() as server:
        lab = NatsLab(server)
        yield lab
        await lab.close()


async def test_without_the_server_nothing_is_lost(
    nats: NatsLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = ReconcilerLab(tmp_path, await nats.bus(), await nats.bus())
    lab.put_in_place(monkeypatch)
    async with lab.reconciler() as reconciler:
        lab.network.learn(mac(0), OTHER)
        await until(lambda: lab.rules == {mac(0): OTHER}, what="the first rule")
        await lab.bus.flush(5)
        await nats.stop_server()
        passes = reconciler.loop.counts.passes
        for number in range(300):
            lab.network.forget(mac(number % 7 + 1))
            lab.network.learn(mac(number % 5 + 1), OTHER)
            before = reconciler.loop.counts.passes
            await until(lambda before=before: reconciler.loop.counts.passes > before, what="a pass")
        for number in range(100, 700):
            lab.network.learn(mac(number), OTHER)
        await until(lambda: len(lab.rules) > 600, within_s=20, what="rules without a bus")
        await until(lambda: reconciler.not_ready() is None, within_s=20, what="nothing left to do")
        assert reconciler.loop.counts.passes >= passes + 300
        assert lab.bus.counters["facts_pending"] < 200
        await nats.start_server()
        await until(lambda: lab.bus.connected and lab.ours.connected, within_s=20, what="the connections")
        reconciler.teller.flush()
        await lab.bus.flush(20)
        state = await lab.ask(RECONCILER_STATE, NetworkStateRequest())
        assert isinstance(state, NetworkStateReply)
        assert state.installed == len(lab.rules)

    # Not through a consumer, which gets a message twice where its acknowledgement was lost with the server.
    events: list[TcEvent] = []
    await read_stored(lab.ours, TC_STREAM, TC_EVENTS.pattern(nats.root), 0.0, lambda it: events.append(it.message))
    assert replayed(events) == lab.rules
    assert any(event.first_pass_id < event.pass_id for event in events), "passes that waited are put together"
    told_writes = sum(not operation.errno for event in events for operation in event.operations)
    assert told_writes == reconciler.loop.counts.writes, "every write is told, and once"
    assert lab.bus.counters.get("facts_dropped", 0) == 0
