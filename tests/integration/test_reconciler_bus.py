"""The reconciler and a real NATS server: passes without it, told afterwards, complete and in order."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.network import NetworkStateReply, NetworkStateRequest, TcEvent
from schemas.streams import TC_STREAM
from schemas.subjects import RECONCILER_STATE, TC_EVENTS
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats_history import read_stored
from services.reconciler.service import Reconciler
from tests.support.bus_lab import NatsLab
from tests.support.deadline import until
from tests.support.fake_network import mac
from tests.support.reconciler_lab import ReconcilerLab, replayed

OTHER, ANOTHER = "10.255.0.3", "10.255.0.4"


@pytest.fixture
async def nats() -> AsyncIterator[NatsLab]:
    async with EmbeddedNats() as server:
        lab = NatsLab(server)
        yield lab
        await lab.close()


async def churn(lab: ReconcilerLab, reconciler: Reconciler, away_s: float) -> int:
    """Forwarding entries come, go and move, at least 300 times and for `away_s`; the passes that it took.

    The rules are right after every change.
    """
    wanted, first = lab.rules, reconciler.loop.counts.full
    until_s, number = time.monotonic() + away_s, 0
    while number < 300 or time.monotonic() < until_s:
        gone, found = mac(number % 7 + 1), mac(number % 5 + 1)
        destination = (OTHER, ANOTHER)[number // 5 % 2]
        before = reconciler.loop.counts.full
        for address in (gone, found):  # a tunnel device would keep the MAC's earlier VTEP beside the new one
            lab.network.forget(address)
        lab.network.learn(found, destination)
        wanted = {known: vtep for known, vtep in wanted.items() if known != gone} | {found: destination}
        await until(lambda before=before: reconciler.loop.counts.full > before, what="a pass")
        await until(lambda wanted=wanted: lab.rules == wanted, what="the rules")
        number += 1
    return reconciler.loop.counts.full - first


# Longer than two pings of the client, and than each period of loop and publisher.
@pytest.mark.parametrize(
    "away_s",
    [0.0, pytest.param(25.0, marks=[pytest.mark.host, pytest.mark.slow, pytest.mark.timeout(180)])],
    ids=["300", "25 s"],
)
async def test_without_the_server_nothing_is_lost(
    nats: NatsLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away_s: float
) -> None:
    lab = ReconcilerLab(tmp_path, await nats.bus(), await nats.bus())
    lab.put_in_place(monkeypatch)
    async with lab.reconciler() as reconciler:
        lab.network.learn(mac(0), OTHER)
        await until(lambda: lab.rules == {mac(0): OTHER}, what="the first rule")
        await lab.bus.flush(60)
        await nats.stop_server()
        passes = await churn(lab, reconciler, away_s)
        for number in range(100, 700):
            lab.network.learn(mac(number), OTHER)
        learned = {mac(number) for number in range(100, 700)}
        await until(lambda: lab.rules.keys() >= learned, what="rules without a bus")
        await until(lambda: reconciler.not_ready() is None, what="nothing left to do")
        assert passes >= 300
        # What waits grows with the writes, hundreds to a fact, and not with the passes.
        assert lab.bus.counters["events_pending"] < 200 + passes / 20
        await nats.start_server()
        await until(lambda: lab.bus.connected and lab.ours.connected, what="the connections")
        reconciler.publisher.flush()
        await lab.bus.flush(60)
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
    assert lab.bus.counters.get("events_dropped", 0) == 0
