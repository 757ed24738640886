"""The reconciler's process in a network namespace of this machine's kernel, with whatever that supports, and NATS.

Rules need flower: where this kernel has none, the reconciler must say so, write nothing, and go on.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.network import NetworkStateReply, NetworkStateRequest, RouteEvent, RouteKind
from schemas.streams import ROUTE_STREAM
from schemas.subjects import RECONCILER_STATE
from services._edge.kernel_support import missing_features
from services._runtime.bus.api import BusError, Delivery
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from tests.support.deadline import until

pytestmark = [pytest.mark.root, pytest.mark.netns, pytest.mark.slow]

REMOTE = "02:01:00:00:00:01"
LINKS = """
link set lo up
link add br0 type bridge
link set br0 up
link add vx100 type vxlan id 100 local 10.255.0.1 dstport 4789 nolearning
link set vx100 master br0 up
link add vxenc0 type vxlan external dstport 4790 local 10.255.0.1 nolearning
link set vxenc0 up
link add rep0 type veth peer name app
link set rep0 master br0 up
"""


def run(line: str) -> None:
    subprocess.run(line.split(), check=True)


def ip(netns: str, line: str) -> None:
    run(f"ip -n {netns} {line}")


def reconciler(settings: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen([sys.executable, "-m", "services.reconciler"], env=settings, stderr=file)


@pytest.fixture
def netns() -> Iterator[str]:
    name = f"tbsvc{uuid.uuid4().hex[:6]}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    for line in LINKS.strip().splitlines():
        ip(name, line)
    yield name
    subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def environment(netns: str, server: EmbeddedNats, state: Path) -> dict[str, str]:
    return dict(os.environ) | {
        "TURNBUCKLE_NATS_URL": server.url,
        "TURNBUCKLE_RECONCILER__NODE": "n1",
        "TURNBUCKLE_RECONCILER__NETNS": netns,
        "TURNBUCKLE_RECONCILER__PORTS": "rep0=02:00:00:00:00:01",
        "TURNBUCKLE_RECONCILER__STATE_DIRECTORY": str(state),
        "TURNBUCKLE_RECONCILER__FRR_DIRECTORY": str(state / "no-frr"),
    }


async def state_of(bus: NatsBus) -> NetworkStateReply | None:
    try:
        subject = RECONCILER_STATE.subject(bus.root, node="n1")
        reply = await bus.request(subject, NetworkStateRequest(), timeout_s=2.0)
    except BusError:
        return None
    assert isinstance(reply, NetworkStateReply)
    return reply


async def wait_for_state(bus: NatsBus, wanted) -> NetworkStateReply:
    async with asyncio.timeout(60):
        while True:
            if (state := await state_of(bus)) is not None and wanted(state):
                return state
            await asyncio.sleep(0.05)


def hooks(netns: str) -> set[str]:
    shown = subprocess.run(["tc", "-n", netns, "-j", "qdisc"], capture_output=True, check=True).stdout
    return {row["kind"] for row in json.loads(shown)}


async def test_the_process_on_this_kernel(netns: str, tmp_path: Path) -> None:
    told: list[RouteEvent] = []

    async def take(delivery: Delivery) -> None:
        assert isinstance(delivery.message, RouteEvent)
        told.append(delivery.message)

    lacking = {feature.module for feature in missing_features()}
    run(f"bridge -n {netns} fdb add {REMOTE} dev vx100 master static")
    async with EmbeddedNats() as server:
        settings = environment(netns, server, tmp_path)
        process = reconciler(settings, tmp_path / "log")
        try:
            bus = await NatsBus.connect(BusOptions(servers=(server.url,), connect_deadline_s=60.0))
            await bus.replay(ROUTE_STREAM, take)
            await wait_for_state(bus, lambda state: state.full_reconciles > 0)
            run(f"bridge -n {netns} fdb add {REMOTE} dev vx100 self dst 10.255.0.2")
            state = await wait_for_state(bus, lambda state: state.vteps == ("10.255.0.2",))
            if lacking:
                assert all(module in state.problems[0] for module in lacking)
                assert "modprobe" in state.problems[0]
                assert (state.writes, state.installed) == (0, 0)
                assert "clsact" not in hooks(netns), "no half-applied host"
            else:
                await wait_for_state(bus, lambda state: state.installed == 1 and not state.problems)
            await until(lambda: any(e.kind is RouteKind.FDB and e.destination == REMOTE for e in told), within_s=60)

            ip(netns, "link set app up")
            await until(lambda: any(e.interface == "rep0" and "carrier" in e.after for e in told), within_s=60)

            second = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.reconciler",
                env=settings | {"TURNBUCKLE_RECONCILER__NETNS": f"/run/netns/{netns}"},
                stderr=subprocess.PIPE,
            )
            _, errors = await asyncio.wait_for(second.communicate(), 60)
            assert (second.returncode, f"kill {process.pid}" in errors.decode()) == (78, True), errors

            run(f"ip netns del {netns}")
            gone = await wait_for_state(bus, lambda state: any(netns in problem for problem in state.problems))
            assert process.poll() is None
            at_once = f"network namespace {netns} is gone or was made anew"
            afterwards = f"there is no network namespace '{netns}'"
            assert gone.problems[0].startswith((at_once, afterwards))
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0, (tmp_path / "log").read_text()
            await bus.close(2.0)
        finally:
            process.kill()
            process.wait()


def test_without_rights_it_says_so_and_changes_nothing(netns: str, tmp_path: Path) -> None:
    settings = environment(netns, EmbeddedNats(port=4), tmp_path)
    command = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", sys.executable, "-m"]
    done = subprocess.run(
        [*command, "services.reconciler"], env=settings, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 78, done.stderr
    assert "CAP_NET_ADMIN" in done.stderr
    assert "run as root" in done.stderr
    assert "clsact" not in hooks(netns)
