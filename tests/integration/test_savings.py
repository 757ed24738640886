"""`turnbuckle savings` of a real server: an agent and allocators record, the command adds up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from schemas.apps import AppSpec
from schemas.savings import Savings
from schemas.streams import APPS, SAVINGS_STREAM
from schemas.subjects import SAVINGS
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services._runtime.bus.options import BusOptions
from services.agent.service import Agent
from services.agent.settings import AgentSettings
from services.allocator.service import Allocator
from services.allocator.settings import AllocatorSettings
from services.cli.main import app as main
from tests.support.cluster_lab import poll
from tests.support.oom_events import oom_event
from tests.support.savings_events import savings
from tests.support.service_in_process import run_in_process

MIB = 1 << 20
SPEC = AppSpec(name="shop", cpu_limit=2, memory_limit=1024 * MIB, mode="observe")
PRICES = {"core_hour_price": 0.03, "gib_hour_price": 0.004, "price_currency": "EUR"}


@pytest.fixture
async def nats() -> AsyncIterator[EmbeddedNats]:
    async with EmbeddedNats() as server:
        yield server


@pytest.fixture
async def bus(nats: EmbeddedNats) -> AsyncIterator[NatsBus]:
    """The test's own."""
    connection = await NatsBus.connect(BusOptions(servers=(nats.url,)))
    yield connection
    await connection.close(2.0)


@pytest.fixture
async def agent(nats: EmbeddedNats, tmp_path: Path) -> AsyncIterator[Agent]:
    """Two containers that came with 0.5 cores and 256 MiB each, and use 0.2 cores and 64 MiB."""
    phase = {"duration_s": 60, "cpu_cores": 0.2, "memory_bytes": 64 * MIB}
    containers = [{"name": name, "phases": [phase]} for name in ("web", "db")]
    limits = {"quota_us": 50_000, "limit_bytes": 256 * MIB}
    scenario = tmp_path / "scenario.json"
    scenario.write_text(json.dumps([{"app": "shop", "scenario": {"containers": containers}, **limits}]))
    connection = await NatsBus.connect(BusOptions(servers=(nats.url,)))
    settings = AgentSettings.load({}, node="n1", host="simulated", scenario_file=scenario)
    async with run_in_process(Agent, settings, connection) as service:
        yield service
    await connection.close(2.0)


async def turnbuckle(bus: NatsBus, *arguments: str) -> tuple[int, str, str]:
    """In a thread of this process."""
    done = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--server", bus.options.servers[0]])
    return done.exit_code, done.stdout, done.stderr


async def rows(bus: NatsBus) -> dict[str, dict[str, Any]]:
    """Of the application, by mode: sums of all days, as the test may run at midnight."""
    code, out, err = await turnbuckle(bus, "savings", "--app", "shop", "--json")
    return {total["mode"]: total for total in json.loads(out)["totals"]} if code == 0 else _nothing_yet(err)


def _nothing_yet(err: str) -> dict[str, dict[str, Any]]:
    assert "nothing is recorded of application 'shop'" in err
    return {}


async def covered(bus: NatsBus, mode: str, seconds: float) -> dict[str, Any]:
    """The mode's sums, once more than so many seconds are covered."""

    async def found() -> dict[str, Any] | None:
        total = (await rows(bus)).get(mode)
        return total if total is not None and total["covered_s"] > seconds else None

    total: dict[str, Any] = await poll(found, every_s=0.5, what=f"{seconds} s of {mode}")
    return total


async def stored(bus: NatsBus) -> list[Savings]:
    """Events of the stream that can be read."""
    events: list[Savings] = []

    def take(delivery: Any) -> None:
        if isinstance(delivery.message, Savings):
            events.append(delivery.message)

    await read_stored(bus, SAVINGS_STREAM, SAVINGS.pattern("tb"), 0.0, take)
    return events


async def test_observed_then_enforced_by_two_allocators_one_after_the_other(
    nats: EmbeddedNats, bus: NatsBus, agent: Agent
) -> None:
    await bus.bucket(APPS).put("shop", SPEC)
    settings = AllocatorSettings.load({}, warm_up_s=0.1, savings_every_s=1, **PRICES)
    first_bus = await NatsBus.connect(BusOptions(servers=(nats.url,)))
    async with run_in_process(Allocator, settings, first_bus) as first:
        observed = await covered(bus, "observe", 4.0)
        check_observed(observed)
        assert agent.node is not None
        assert {limits.quota_us for limits in agent.node.containers.limits.values()} == {50_000}, "nothing is written"
        await bus.bucket(APPS).put("shop", SPEC.model_copy(update={"mode": "enforce"}))
        enforced = await covered(bus, "enforce", 2.0)
        first_replica = first._membership.id
    await first_bus.close(60)  # what it published when it stopped is stored

    assert enforced["cpu"]["baseline_core_h"] * 3_600 == pytest.approx(enforced["covered_s"])
    after = (await rows(bus))["enforce"]["covered_s"]
    second_bus = await NatsBus.connect(BusOptions(servers=(nats.url,)))
    async with run_in_process(Allocator, settings, second_bus) as second:
        enforced = await covered(bus, "enforce", after + 2.0)
        second_replica = second._membership.id
    await second_bus.close(60)

    # The agent wrote lower quotas: what they came with is known all the same.
    assert enforced["cpu"]["baseline"] == ["configured"]
    assert enforced["cpu"]["baseline_core_h"] * 3_600 == pytest.approx(enforced["covered_s"])
    assert enforced["cpu"]["saved_core_h"] > 0
    assert enforced["throttling"]["would_throttle_periods"] == 0
    events = await stored(bus)
    assert {event.record.rpartition("-")[0] for event in events} == {first_replica, second_replica}
    info = await bus.jetstream.stream_info("TB_SAVINGS", subjects_filter=">")
    assert set((info.state.subjects or {}).values()) == {1}, "of each subject only the newest event is kept"
    assert info.state.consumer_count == 0


def check_observed(total: dict[str, Any]) -> None:
    """Of two containers of 0.5 cores and 256 MiB: 1 core and 0.5 GiB for every second that is covered."""
    hours = total["covered_s"] / 3_600
    cpu, memory = total["cpu"], total["memory"]
    assert cpu["baseline"] == memory["baseline"] == ["configured"]
    assert cpu["baseline_core_h"] == pytest.approx(hours)
    assert memory["baseline_gib_h"] == pytest.approx(0.5 * hours)
    assert 0.4 * hours < cpu["held_core_h"] < 0.9 * hours, "above 2 x 0.2 cores, and below what they came with"
    assert memory["held_gib_h"] > 0.2 * hours, "20 % of the application's GiB are withheld"
    assert cpu["saved_core_h"] == pytest.approx(cpu["baseline_core_h"] - cpu["held_core_h"])
    money = 0.03 * cpu["saved_core_h"] + 0.004 * memory["saved_gib_h"]
    assert total["money"] == {"EUR": pytest.approx(money)}
    assert total["throttling"]["periods"] == pytest.approx(2 * total["covered_s"] / 0.1, rel=0.2)


async def test_events_that_contradict_their_subject_and_garbage_change_nothing(bus: NatsBus) -> None:
    today = {"day": datetime.now(UTC).date().isoformat()}
    real = savings(**today)
    subject = SAVINGS.subject("tb", app="shop", record="a-1", **today)
    bus.publish_event(subject, real, message_id="real")
    forged = SAVINGS.subject("tb", app="shop", record="b-1", **today)
    bus.publish_event(forged, savings(app="shop", record="c-1", **today), message_id="forged")
    bus.publish_event(SAVINGS.subject("tb", app="shop", record="d-1", **today), oom_event(), message_id="another type")
    bus.connection.send_now(f"tb.evt.savings.shop.{today['day']}.e-1", b"\xc1 no message")
    bus.connection.send_now("tb.evt.savings.shop.no-day.e-2", b'{"type": "turnbuckle.savings.v1.Savings"}')
    await bus.flush(60)

    code, out, err = await turnbuckle(bus, "savings", "--json", "--days", "2")

    assert code == 0, err
    assert [row["covered_s"] for row in json.loads(out)["rows"]] == [3_600.0]
    assert "2 stored events were left out: they are not what their subject says" in err

    code, out, err = await turnbuckle(
        bus, "savings", "--core-hour-price", "0.03", "--gib-hour-price", "0.004", "--currency", "EUR"
    )

    assert code == 0, err
    assert "0.04 EUR" in out
    assert "would be: 0.4 % of periods, 1.5 core-s" in out


async def test_nothing_recorded_is_no_error_but_for_a_named_application(bus: NatsBus) -> None:
    code, out, err = await turnbuckle(bus, "savings", "--json")
    assert (code, json.loads(out)) == (0, {"rows": [], "totals": []})
    assert "Nothing is recorded in the last 7 days (UTC)" in err

    code, _, err = await turnbuckle(bus, "savings", "--app", "shop", "--days", "1")
    assert (code, "nothing is recorded of application 'shop' today (UTC)" in err) == (1, True)

    code, _, err = await turnbuckle(bus, "savings", "--currency", "EUR")
    assert (code, "all three, or none" in err) == (2, True)
