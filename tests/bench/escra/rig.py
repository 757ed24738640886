"""What carries a policy out: nats-server, real agent, real allocator; and the switch from policy to policy."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from schemas.apps import PERIOD_US, AppSpec
from schemas.streams import APPS
from services._host.cgroupfs import CgroupLayout, detect
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from tests.bench.escra.measure import Recorder, Tick
from tests.bench.escra.plan import AppLimits
from tests.bench.escra.policies import PolicySpec
from tests.bench.escra.processes import Child
from tests.bench.machine import process_cpu_ns

NODE: Final = "bench-node"
SWITCH_S: Final = 8.0
_POLL_S: Final = 0.02
_V1_LIMITS: Final = (("cpu", "cpu.cfs_quota_us", "-1"), ("memory", "memory.limit_in_bytes", "-1"))
_V2_LIMITS: Final = (("cpu", "cpu.max", f"max {PERIOD_US}"), ("memory", "memory.max", "max"))


class SwitchError(RuntimeError):
    """A policy did not take hold in time; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU time of the controller's parts so far, ns."""

    agent: int
    allocator: int
    nats: int

    def since(self, before: Costs) -> dict[str, int]:
        """What was used meanwhile, by part, ns."""
        return {name: getattr(self, name) - getattr(before, name) for name in ("agent", "allocator", "nats")}


class Rig:
    """Everything that stays up from cell to cell."""

    def __init__(self, server: EmbeddedNats, bus: NatsBus, agent: Child, allocator: Child) -> None:
        self._server = server
        self.bus = bus
        self._agent = agent
        self._allocator = allocator

    def check(self) -> None:
        """Raise `ProcessError` if a part has ended."""
        self._agent.check()
        self._allocator.check()

    def costs(self) -> Costs:
        """CPU time so far."""
        return Costs(self._agent.cpu_ns(), self._allocator.cpu_ns(), process_cpu_ns(self._server.pid or 0))

    async def withdraw(self, app: str) -> None:
        """The application is gone."""
        await self.bus.bucket(APPS).delete(app)

    async def lift(self, recorder: Recorder, containers: Iterable[str], limits: AppLimits) -> None:
        """No limits: the application is only observed, and its control groups hold none.

        Args:
            recorder: hears whether it is so.
            containers: ids.
            limits: what would hold.

        Raises:
            SwitchError: limits are still there.
        """
        await self.bus.bucket(APPS).put(recorder.app, _spec(recorder.app, limits, enforced=False))
        known = list(containers)

        def free(tick: Tick) -> bool:
            if (tick.columns["quota_us"] < 0).all() and (tick.columns["memory_limit_bytes"] < 0).all():
                return True
            # Also again: an order that was under way may have come after the first time.
            lift_limits(known)
            return False

        await self._until(recorder, free, "containers still have limits")

    async def enforce(
        self, recorder: Recorder, spec: PolicySpec, limits: AppLimits, profile: Path | None, containers: int
    ) -> None:
        """A policy takes over.

        Args:
            recorder: hears whether it has.
            spec: the policy.
            limits: the application's.
            profile: where peers begin.
            containers: how many there are.

        Raises:
            SwitchError: not all containers have limits.
            ProcessError: the allocator does not take the policy.
        """
        self._allocator.tell({"policy": spec.name} | ({"profile": str(profile)} if profile else {}))
        await self._allocator.hear(SWITCH_S)
        await self.bus.bucket(APPS).put(recorder.app, _spec(recorder.app, limits, enforced=True))
        cpu_limit_us = limits.cpu_cores * 100_000

        def holds(tick: Tick) -> bool:
            quota_us = tick.columns["quota_us"]
            limited = (quota_us > 0).all() and (tick.columns["memory_limit_bytes"] > 0).all()
            return bool(limited and len(tick.keys) >= containers and quota_us.sum() <= cpu_limit_us)

        await self._until(recorder, holds, f"{spec.name} does not hold all containers")

    async def _until(self, recorder: Recorder, condition: Callable[[Tick], bool], trouble: str) -> None:
        """Wait for two batches in a row that are as wanted."""
        deadline_s, seen, in_a_row = time.monotonic() + SWITCH_S, 0, 0
        while in_a_row < 2:
            tick = recorder.latest
            if tick is not None and tick.time_ns != seen:
                seen = tick.time_ns
                in_a_row = in_a_row + 1 if condition(tick) else 0
                continue
            self.check()
            if time.monotonic() > deadline_s:
                state = "no batch" if tick is None else _describe(tick)
                raise SwitchError(f"{trouble} after {SWITCH_S:g} s: {state}")
            await asyncio.sleep(_POLL_S)


def _describe(tick: Tick) -> str:
    quotas = tick.columns["quota_us"].tolist()
    limits = (tick.columns["memory_limit_bytes"] >> 20).tolist()
    return ", ".join(f"{key} {quota} us {mib} MiB" for key, quota, mib in zip(tick.keys, quotas, limits, strict=True))


def _spec(app: str, limits: AppLimits, *, enforced: bool) -> AppSpec:
    # The policy's name is the exchanged allocator's affair.
    return AppSpec(
        name=app,
        cpu_limit=limits.cpu_cores,
        memory_limit=limits.memory_bytes,
        mode="enforce" if enforced else "observe",
    )


def cpu_used_ns(containers: Iterable[str]) -> dict[str, int]:
    """CPU time that Docker containers have used so far, as the kernel counts it; vanished ones are left out."""
    layout = detect()
    used_ns = {}
    for container, directories in _groups(layout, containers):
        with suppress(FileNotFoundError):
            if layout.version == 1:
                used_ns[container] = int(Path(directories["cpuacct"], "cpuacct.usage").read_text(encoding="ascii"))
            else:
                fields = Path(directories["cpu"], "cpu.stat").read_text(encoding="ascii").split()
                used_ns[container] = int(fields[fields.index("usage_usec") + 1]) * 1_000
    return used_ns


def lift_limits(containers: Iterable[str]) -> None:
    """Take CPU quota and memory limit off Docker containers; vanished ones are left out."""
    layout = detect()
    files = _V1_LIMITS if layout.version == 1 else _V2_LIMITS
    for _, directories in _groups(layout, containers):
        with suppress(FileNotFoundError):
            for controller, name, value in files:
                path = Path(directories[controller]) / name
                if path.read_text(encoding="ascii").strip() != value:
                    path.write_text(value, encoding="ascii")


def _groups(layout: CgroupLayout, containers: Iterable[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Where Docker may keep a container's control groups: under cgroupfs or systemd; one of them exists."""
    for container in containers:
        for relative in (f"docker/{container}", f"system.slice/docker-{container}.scope"):
            yield container, layout.directories(relative)


@asynccontextmanager
async def open_rig(logs: Path) -> AsyncIterator[Rig]:
    """Start everything; the agent puts all limits back at the end."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedNats())
        bus = await NatsBus.connect(BusOptions(servers=(server.url,), name="bench"))
        stack.push_async_callback(bus.close, 2.0)
        state = stack.enter_context(tempfile.TemporaryDirectory(prefix="turnbuckle-bench-"))
        common = {"NATS_URL": server.url, "TURNBUCKLE_LOG_LEVEL": "warning"}
        agent_settings = {
            "NODE": NODE,
            "STATE_DIRECTORY": state,
            "MANAGED_ROOT": "turnbuckle-bench-escra",
            "DOCKER": "auto",
            "ON_DRIFT": "adopt",  # `none` takes the limits off by hand
        }
        allocator = await Child.start(
            "allocator", ("tests.bench.escra.peer_allocator",), common, logs / "allocator.log"
        )
        stack.push_async_callback(allocator.stop)
        agent = await Child.start(
            "agent",
            ("services.agent",),
            common | {f"TURNBUCKLE_AGENT__{name}": value for name, value in agent_settings.items()},
            logs / "agent.log",
        )
        stack.push_async_callback(agent.stop)
        yield Rig(server, bus, agent, allocator)
