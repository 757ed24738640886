"""A node's name, with agents as processes: kept over a kill, refused to another host's agent, on a secured server."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.containers import NodeInfo
from schemas.roles import Role
from schemas.streams import NODES
from services._runtime.bus.nats import NatsBus
from tests.support.cluster_lab import ServiceProcess, poll
from tests.support.secured_nats import SecuredNats

NODE = "n1"
AT_ONCE_S = 20
"""For a start on a busy machine; a registration that nobody renews expires after 30 s."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SecuredNats]:
    async with SecuredNats(tmp_path / "secrets", nodes=(NODE,)) as made:
        await made.declare()
        yield made


@pytest.fixture
async def operator(server: SecuredNats) -> AsyncIterator[NatsBus]:
    bus = await server.bus(Role.OPERATOR)
    assert bus.undeclared == []
    yield bus
    await bus.close(2)


def launch(server: SecuredNats, directory: Path, state: str) -> ServiceProcess:
    """An agent of the name, with the state directory of one host."""
    scenario = directory / "load.json"
    scenario.write_text(json.dumps([]))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "TURNBUCKLE_"))}
    ours = {
        "HEALTH_PORT": "0",
        "AGENT__NODE": NODE,
        "AGENT__HOST": "simulated",
        "AGENT__SCENARIO_FILE": str(scenario),
        "AGENT__STATE_DIRECTORY": str(directory / state),
    }
    environment = kept | server.environment(Role.AGENT, NODE) | {f"TURNBUCKLE_{k}": v for k, v in ours.items()}
    return ServiceProcess("agent", environment, directory / f"{state}.log")


async def registered(bus: NatsBus, after: int = 0, within_s: float = 60.0) -> NodeInfo:
    """The registration that follows an incarnation."""

    async def found() -> NodeInfo | None:
        entry = await bus.bucket(NODES).get(NODE)
        message = entry.message if entry is not None else None
        return message if isinstance(message, NodeInfo) and message.incarnation > after else None

    info = await poll(found, within_s=within_s, what="a registration")
    assert isinstance(info, NodeInfo)
    return info


async def test_after_a_kill_the_name_is_there_at_once(server: SecuredNats, operator: NatsBus, tmp_path: Path) -> None:
    first = launch(server, tmp_path, "host")
    before = await registered(operator)
    first.kill()
    second = launch(server, tmp_path, "host")
    try:
        after = await registered(operator, before.incarnation, AT_ONCE_S)
        assert after.holder == before.holder
        assert "duplicate_node_name_suspected" not in {line["event"] for line in second.log()}
    finally:
        second.kill()


@pytest.mark.timeout(120)
async def test_another_hosts_agent_of_the_name_ends_and_says_why(
    server: SecuredNats, operator: NatsBus, tmp_path: Path
) -> None:
    first = launch(server, tmp_path, "host")
    before = await registered(operator)
    second = launch(server, tmp_path, "elsewhere")
    try:
        assert await second.exit_code(60) == 78
        assert f"node name '{NODE}' is at work already" in second.log_path.read_text()
        assert "task_crashed" not in {line["event"] for line in second.log()}
        after = await registered(operator)
        assert (after.incarnation, after.holder) == (before.incarnation, before.holder)
        assert first.running
    finally:
        first.kill()
        second.kill()
