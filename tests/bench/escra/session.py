"""One deployed application, and its cells one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

from schemas.apps import PERIOD_US
from tests.bench.escra.apps.application import BatchApplication
from tests.bench.escra.apps.registry import APPLICATIONS
from tests.bench.escra.deploy import Deployment, deploy
from tests.bench.escra.disturbance import (
    MOST_FOREIGN_CORES,
    MOST_FOREIGN_CORES_STARTING,
    Disturbance,
    MachineTime,
    machine_time,
)
from tests.bench.escra.load.arrivals import Load, LoadKind
from tests.bench.escra.load.client import Order
from tests.bench.escra.measure import Recorder, Recording
from tests.bench.escra.metrics import run_metrics, total_used_us
from tests.bench.escra.plan import (
    BATCH_LOAD,
    AppLimits,
    Cell,
    Plan,
    app_limits,
    cell_seed,
    profile_seed,
    trace_start_s,
)
from tests.bench.escra.policies import parse
from tests.bench.escra.processes import Child
from tests.bench.escra.rig import Costs, Rig, cpu_used_ns
from tests.bench.escra.speed import probe_us, speed_until
from tests.bench.escra.store import Store

READY_S: Final = 45.0
BUS_PREFIX: Final = "escra-"
"""Of an application's name on the bus: others on this machine may have started the same application."""
WARM_UP_S: Final = 2.0
MOST_RESTARTS: Final = 5
"""Of one container since it was deployed."""
_QUIET_CORES: Final = 0.1
_QUIET_S: Final = 4.0
_ANSWER_S: Final = 30.0
_UNLIMITED: Final = AppLimits(64.0, 8 << 30, 0.0, 0.0)
"""While an application is only observed."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What every session uses."""

    rig: Rig
    plan: Plan
    store: Store
    traces: Path


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU time so far."""

    controller: Costs
    bench_ns: int
    """Load client and runner."""
    app_ns: dict[str, int]
    """The application's standing containers, by id."""
    machine: MachineTime


@dataclass(frozen=True, slots=True)
class Driven:
    """What happened in a window, beside what the bus tells."""

    done: dict[str, Any]
    """The client's counts."""
    before: Spent
    after: Spent
    probe_us: float
    """How slow the machine was: `tests.bench.escra.speed`."""

    @property
    def only_standing(self) -> bool:
        """Whether no container was started or killed."""
        before, after = self.before.app_ns, self.after.app_ns
        return bool(self.done) and before.keys() == after.keys() and all(after[each] >= before[each] for each in before)

    def used_us(self, recording: Recording) -> float:
        """CPU time of the application; of what was killed or has ended only samples tell, and tell rather too much."""
        before, after = self.before.app_ns, self.after.app_ns
        counted_us = sum(after[each] - before[each] for each in before.keys() & after.keys()) / 1e3
        if self.only_standing:
            return counted_us
        return max(counted_us, float(total_used_us(recording).sum()))

    def figures(self, recording: Recording, seconds: float) -> dict[str, Any]:
        """For the cell's record: costs, and what was not ours."""
        costs = self.after.controller.since(self.before.controller)
        used_s = self.used_us(recording) / 1e6
        ours_s = used_s + (sum(costs.values()) + self.after.bench_ns - self.before.bench_ns) / 1e9
        disturbance = Disturbance.between(self.before.machine, self.after.machine, ours_s, seconds)
        most = MOST_FOREIGN_CORES if self.only_standing else MOST_FOREIGN_CORES_STARTING
        return {
            "window_s": seconds,
            "controller_ns": costs,
            "disturbance": asdict(disturbance),
            "disturbed": disturbance.exceeds(most),
            "probe_us": self.probe_us,
        }


class Session:
    """An application that is up."""

    def __init__(self, bench: Bench, deployment: Deployment, recorder: Recorder, client: Child | None) -> None:
        self._bench = bench
        self._deployment = deployment
        self._recorder = recorder
        self._client = client
        self._restarts: dict[str, int] = {}

    async def profile(self, cell: Cell) -> None:
        """Run a cell's load without limits and keep what was used, unless it was done before."""
        store, plan = self._bench.store, self._bench.plan
        path = store.profile_path(cell)
        if path.exists():
            return
        await self._prepare()
        await self._bench.rig.lift(self._recorder, self._deployment.names.values(), _UNLIMITED)
        self._recorder.begin()
        if cell.load == BATCH_LOAD:
            begin_ns = time.time_ns()
            await cast("BatchApplication", self._deployment.app).run_batch(self._deployment)
            recording = self._recorder.take(begin_ns, time.time_ns())
        else:
            out = store.profiles / f"{cell.profile_name}.requests.npz"
            seed = profile_seed(plan, cell.app, cell.load)
            order = self._order(cell.load, plan.profile_s, seed, out, cell.load_share)
            begin_ns, _ = await self._drive(order, plan.profile_s)
            recording = self._recorder.take(
                begin_ns + int(plan.settle_s * 1e9), begin_ns + int((plan.settle_s + plan.profile_s) * 1e9)
            )
        profile = recording.profile()
        if set(self._deployment.names) - set(profile.containers):
            raise RuntimeError(f"profile {cell.profile_name}: no batch tells of all containers")
        profile.write(path)

    async def warm_up(self) -> None:
        """Requests that do not count: caches of a fresh application are cold."""
        if self._client is not None:
            await self._bench.rig.lift(self._recorder, self._deployment.names.values(), _UNLIMITED)
            out = self._bench.store.profiles / "warm-up.npz"
            await self._drive(self._order("fixed", WARM_UP_S - self._bench.plan.settle_s, 1, out), 0.0)

    async def heal(self) -> bool:
        """After kills: the data, and warm caches, are there again. False: deploy anew, Docker lets a container wait.

        Before each restart it waits twice as long, from 0.1 s on; ten seconds of life begin that anew.
        """
        if max((await self._deployment.restarts()).values(), default=0) > MOST_RESTARTS:
            return False
        await self._prepare()
        await self.warm_up()
        return True

    async def measure(self, cell: Cell) -> dict[str, Any]:
        """Measure one cell and return its record; rows and batches are written beside."""
        bench, names = self._bench, self._deployment.names
        profile = bench.store.profile(cell)
        if profile is None:
            raise RuntimeError(f"{cell.pair} has no profile")
        limits, policy = app_limits(profile, cell.limit), parse(cell.policy)
        await self._prepare()
        if policy.limited:
            path = bench.store.profile_path(cell)
            await bench.rig.enforce(self._recorder, policy, limits, path, len(names))
        else:
            await bench.rig.lift(self._recorder, names.values(), limits)
        if cell.load == BATCH_LOAD:
            driven, figures, recording = await self._run_batch()
        else:
            driven, figures, recording = await self._run_load(cell)
        recording.write(bench.store.recording_path(cell))
        restarts = await self.restarted()
        return {
            "cell": asdict(cell),
            "pair": cell.pair,
            "limits": asdict(limits),
            "metrics": run_metrics(recording, int(limits.cpu_cores * PERIOD_US), driven.used_us(recording)).as_dict(),
            "restarts": restarts,
            "finished_ns": time.time_ns(),
            **figures,
        }

    async def restarted(self) -> int:
        """Containers that were killed, or crashed, and were started anew since the last question."""
        now = await self._deployment.restarts()
        count = sum(max(value - self._restarts.get(name, 0), 0) for name, value in now.items())
        self._restarts = now
        return count

    async def _prepare(self) -> None:
        """Data as at first; and what the cell before left unanswered is worked off."""
        await self._deployment.reset()
        deadline_s = time.monotonic() + _QUIET_S
        while time.monotonic() < deadline_s:
            tick = self._recorder.latest
            if tick is not None and tick.columns["used_us"].sum() < _QUIET_CORES * PERIOD_US:
                return
            await asyncio.sleep(0.05)

    def _order(self, load: str, seconds: float, seed: int, out: Path, share: float = 1.0) -> Order:
        plan, app = self._bench.plan, self._deployment.app
        host, port = self._deployment.address
        return Order(
            Load(
                cast("LoadKind", load),
                app.base_rate_rps * plan.rate * share,
                plan.settle_s + seconds,
                seed,
                cycle_s=plan.cycle_s,
                # The measured window begins with the quiet half of a cycle.
                start_s=-plan.settle_s % plan.cycle_s if load == "burst" else trace_start_s(plan, app.name, load),
            ),
            host,
            port,
            request_seed=seed,
            timeout_s=plan.timeout_s,
            traces=str(self._bench.traces.absolute()),
            out=str(out.absolute()),
        )

    async def _drive(self, order: Order, seconds: float) -> tuple[int, Driven]:
        """Send a run's requests; moment 0 (wall clock), and what was used and answered."""
        assert self._client is not None
        settle_s = self._bench.plan.settle_s
        self._client.tell(asdict(order))
        begin_ns = int((await self._client.hear(_ANSWER_S))["begun_ns"])
        await _sleep_until(begin_ns + int(settle_s * 1e9))
        before = self._spent()
        probed_us = await speed_until(begin_ns + int((settle_s + seconds) * 1e9))
        after = self._spent()
        done = (await self._client.hear(order.timeout_s + _ANSWER_S))["done"]
        return begin_ns, Driven(done, before, after, probed_us)

    def _spent(self) -> Spent:
        client_ns = self._client.cpu_ns() if self._client is not None else 0
        app_ns = cpu_used_ns(self._deployment.names.values())
        return Spent(self._bench.rig.costs(), client_ns + time.process_time_ns(), app_ns, machine_time())

    async def _run_load(self, cell: Cell) -> tuple[Driven, dict[str, Any], Recording]:
        plan = self._bench.plan
        out, seed = self._bench.store.requests_path(cell), cell_seed(plan, cell)
        order = self._order(cell.load, plan.window_s, seed, out, cell.load_share)
        self._recorder.begin()
        begin_ns, driven = await self._drive(order, plan.window_s)
        from_ns = begin_ns + int(plan.settle_s * 1e9)
        recording = self._recorder.take(from_ns, from_ns + int(plan.window_s * 1e9))
        figures = {"client": driven.done, "load": asdict(order.load), "request_seed": order.request_seed}
        return driven, figures | driven.figures(recording, plan.window_s), recording

    async def _run_batch(self) -> tuple[Driven, dict[str, Any], Recording]:
        self._recorder.begin()
        before, begin_ns = self._spent(), time.time_ns()
        result = await cast("BatchApplication", self._deployment.app).run_batch(self._deployment)
        end_ns, after = time.time_ns(), self._spent()
        recording = self._recorder.take(begin_ns, end_ns)
        driven = Driven({}, before, after, probe_us())
        figures = {"batch": asdict(result)} | driven.figures(recording, (end_ns - begin_ns) / 1e9)
        return driven, figures, recording


async def _sleep_until(wall_ns: int) -> None:
    await asyncio.sleep(max(0.0, (wall_ns - time.time_ns()) / 1e9))


@asynccontextmanager
async def open_session(bench: Bench, app_name: str) -> AsyncIterator[Session]:
    """Deploy an application, and take it away at the end."""
    app = APPLICATIONS[app_name]
    bus_name = f"{BUS_PREFIX}{app_name}"
    recorder = await Recorder(bus_name).listen(bench.rig.bus)
    deployment = await deploy(app, bus_name)
    client: Child | None = None
    try:
        await deployment.wait_ready(READY_S)
        if not isinstance(app, BatchApplication):
            log = bench.store.directory / "client.log"
            client = await Child.start("client", ("tests.bench.escra.load.client", "--app", app_name), {}, log)
            await client.hear(_ANSWER_S)
        session = Session(bench, deployment, recorder, client)
        await session.restarted()
        yield session
    finally:
        if client is not None:
            await client.stop()
        await recorder.stop()
        await bench.rig.withdraw(bus_name)
        await deployment.stop()
