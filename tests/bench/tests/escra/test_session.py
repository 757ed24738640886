"""A session asks the client for the load that a cell has, and heals what was killed, as long as Docker restarts it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bench.escra.apps.registry import APPLICATIONS
from tests.bench.escra.measure import Recorder
from tests.bench.escra.plan import Block, Cell, Plan
from tests.bench.escra.rig import Costs
from tests.bench.escra.session import MOST_RESTARTS, Bench, Session
from tests.bench.escra.store import Store
from tests.support.cfs_batches import Row, batch

_SHOP = APPLICATIONS["shop"]
_PLAN = Plan(
    (Block(("shop",), ("fixed",), ("ample", "matched"), ("none",)),),
    1,
    seed=1,
    window_s=0.02,
    settle_s=0,
    profile_s=0.02,
)


class FakeRig:
    """Everything holds at once."""

    def costs(self) -> Costs:
        return Costs(0, 0, 0)

    async def lift(self, *_: Any) -> None:
        pass


class FakeClient:
    """Sends nothing, and says so."""

    def __init__(self) -> None:
        self.orders: list[dict[str, Any]] = []
        self._answers: list[dict[str, Any]] = []

    def tell(self, order: dict[str, Any]) -> None:
        self.orders.append(order)
        self._answers = [{"begun_ns": time.time_ns()}, {"done": {"requests": 0, "ok": 0}}]

    async def hear(self, _deadline_s: float) -> dict[str, Any]:
        return self._answers.pop(0)

    def cpu_ns(self) -> int:
        return 0


class FakeDeployment:
    """One container."""

    app = _SHOP
    address = ("127.0.0.1", 1)

    def __init__(self) -> None:
        self.names = {"web": "0123456789ab" * 5}
        self.counts = {"web": 0}
        self.resets = 0

    async def restarts(self) -> dict[str, int]:
        return dict(self.counts)

    async def reset(self) -> None:
        self.resets += 1


class Telling(Recorder):
    """A recorder that hears of one idle period whenever it is asked to begin."""

    def begin(self) -> None:
        super().begin()
        self.take_message(SimpleNamespace(message=batch(0, [Row(used_us=0)])))  # type: ignore[arg-type]

    def take(self, begin_ns: int, end_ns: int) -> Any:
        del begin_ns, end_ns
        return super().take(0, 1 << 62)


@pytest.fixture
def deployment() -> FakeDeployment:
    return FakeDeployment()


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, _PLAN)


@pytest.fixture
def session(store: Store, deployment: FakeDeployment, client: FakeClient, tmp_path: Path) -> Session:
    recorder = Telling("shop")
    recorder.begin()
    bench = Bench(FakeRig(), _PLAN, store, tmp_path)  # type: ignore[arg-type]
    return Session(bench, deployment, recorder, client)  # type: ignore[arg-type]


async def test_the_profile_and_the_cell_have_the_load_of_the_limit(session: Session, client: FakeClient, store: Store):
    rates = {}
    for limit in ("ample", "matched"):
        cell = Cell("shop", "fixed", limit, "none", 0)  # type: ignore[arg-type]
        assert store.profile(cell) is None
        await session.profile(cell)
        await session.profile(cell)  # is there
        record = await session.measure(cell)
        rates[limit] = [order["load"]["rate_rps"] for order in client.orders]
        client.orders.clear()
        assert json.loads(json.dumps(record))["load"]["rate_rps"] == rates[limit][-1]
    assert rates == {
        "ample": [_SHOP.base_rate_rps] * 2,
        "matched": [pytest.approx(0.6 * _SHOP.base_rate_rps)] * 2,
    }


async def test_a_cell_without_a_profile_is_refused(session: Session):
    with pytest.raises(RuntimeError, match="no profile"):
        await session.measure(Cell("shop", "fixed", "ample", "none", 0))


async def test_after_a_kill_data_and_caches_are_there_again(
    session: Session, deployment: FakeDeployment, client: FakeClient
):
    deployment.counts["web"] = MOST_RESTARTS
    assert await session.heal()
    assert deployment.resets == 1
    assert len(client.orders) == 1, "warm again"


async def test_what_docker_starts_late_is_deployed_anew(
    session: Session, deployment: FakeDeployment, client: FakeClient
):
    deployment.counts["web"] = MOST_RESTARTS + 1
    assert not await session.heal()
    assert (deployment.resets, client.orders) == (0, [])


async def test_a_restart_is_told_once(session: Session, deployment: FakeDeployment):
    deployment.counts["web"] = 2
    assert [await session.restarted(), await session.restarted()] == [2, 0]
    deployment.counts["web"] = 3
    assert await session.restarted() == 1
