"""What `fabric drain` tells FRR; that it works is a matter of the lab (tests/lab/test_drain.py)."""

from pathlib import Path

import pytest

from services._edge.frr_drain import DRAIN_IN, DRAIN_NODE, DRAIN_OUT, UPLINK_MAPS
from services._runtime.command.errors import CommandError, UnavailableError
from services.fabric import drain
from services.fabric.drain import UplinkState, select_uplinks, status
from services.fabric.drain_plan import drain_steps
from services.fabric.frr_text import FrrPaths
from services.fabric.model import HostFile
from services.fabric.paths import FabricPaths
from tests.support.fake_frr import FakeFrr

FIELDS = {
    "name": "h1",
    "asn": 65001,
    "vtep": "10.255.0.1",
    "vni": 100,
    "frr": {"start": True},
    "uplinks": ["p1", {"name": "p2", "address": "192.0.2.1/31", "peer": "192.0.2.0"}],
}
HOST = HostFile.model_validate(FIELDS)


def commands(host: HostFile, held: dict[str, frozenset[str]], *drained: str) -> list[str]:
    return [command for step in drain_steps(host, held, drained) for command in step]


def test_one_uplink_is_drained_by_its_neighbour():
    told = commands(HOST, {}, "p2")
    assert f"neighbor 192.0.2.0 route-map {DRAIN_IN} in" in told
    assert f"neighbor 192.0.2.0 route-map {DRAIN_OUT} out" in told
    assert not any("neighbor p1" in command for command in told)
    assert "set as-path prepend 65001 65001" in told
    assert commands(HOST, {"192.0.2.0": UPLINK_MAPS})[-2:] == [
        f"no neighbor 192.0.2.0 route-map {DRAIN_IN} in",
        f"no neighbor 192.0.2.0 route-map {DRAIN_OUT} out",
    ]


def test_a_host_goes_on_announcing_only_what_is_its_own():
    assert "match as-path OWN" in commands(HOST, {}, "p1")
    transit = HostFile.model_validate(FIELDS | {"transit": True})
    assert "match as-path OWN" not in commands(transit, {}, "p1")


def test_no_name_means_all_and_an_unknown_one_is_named():
    assert select_uplinks(HOST, []) == HOST.uplinks
    with pytest.raises(CommandError, match="h1 has no uplink p9: there are p1, p2"):
        select_uplinks(HOST, ["p9"])


async def test_status_is_what_frr_says(tmp_path: Path):
    import asyncio  # noqa: PLC0415
    import json  # noqa: PLC0415

    hop = {"fib": True, "interfaceName": "p1"}
    routes = {"10.255.0.2/32": [{"selected": True, "nexthops": [hop]}], "10.0.0.0/8": [{"nexthops": [hop]}]}
    running = f"  neighbor 192.0.2.0 route-map {DRAIN_IN} in\n  neighbor 192.0.2.0 route-map {DRAIN_OUT} out\n"
    answers = {
        "bgpd": {"show running-config": running},
        "zebra": {"show ip route bgp json": json.dumps(routes)},
    }
    paths = FabricPaths(frr=FrrPaths(runtime=str(tmp_path)))
    async with FakeFrr(tmp_path / "h1", answers):
        found = await asyncio.to_thread(status, HOST, paths)
    assert found == [UplinkState("p1", drained=False, routes=1), UplinkState("p2", drained=True, routes=0)]
    answers["bgpd"]["show running-config"] = "".join(
        f"  neighbor {neighbour} route-map {DRAIN_NODE} out\n" for neighbour in ("p1", "192.0.2.0")
    )
    async with FakeFrr(tmp_path / "h1", answers):
        assert all(state.drained for state in await asyncio.to_thread(status, HOST, paths))
    with pytest.raises(UnavailableError, match="bgpd does not run"):
        await asyncio.to_thread(status, HOST, paths)


def test_each_wait_is_announced(monkeypatch: pytest.MonkeyPatch):
    """Two uplinks drained one by one: two steps of 2 s each, then the wait for routes."""

    async def nothing_attached(*_: object) -> str:
        return ""

    monkeypatch.setattr(drain, "_running_config", nothing_attached)
    monkeypatch.setattr(drain, "_vtysh", lambda *_: None)
    monkeypatch.setattr(drain, "CONVERGENCE_WAIT_S", 0.0)
    monkeypatch.setattr(drain, "status", lambda *_: [UplinkState("p1", drained=True, routes=0)])
    lines: list[str] = []

    drain.drain(HOST, HOST.uplinks, progress=lines.append)

    assert lines == [
        "step 1 of 2: waiting 0 s for other routers to converge",
        "step 2 of 2: waiting 0 s for other routers to converge",
        "waiting until no route forwards over p1, p2, at most 15 s",
    ]
