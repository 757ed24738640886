"""What one host's key can do to the allocation of another host's applications by flooding the bus.

``python -m tests.bench.flood [--apps 200] [--seconds 6] [--kinds garbage large]``. A server as `turnbuckle nats config`
sets it up, an allocator, an agent on gpu-02 with a simulated container of each of so many applications, and floods of
gpu-01's key: garbage of 200 bytes, garbage of 1 MB, memory requests, facts, batches of 2,000 containers. Counted are
decisions (messages with at least one changed limit) for gpu-02's applications; of the changes of demand of the busy
ones, one each 0.5 s, those that a decision followed; and their periods that were throttled: beside as many seconds
before the flood. The flooder runs at the lowest priority, since it stands for a host of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.limits import LimitDecisions
from schemas.roles import Role
from schemas.streams import APPS
from schemas.subjects import CFS, LIMIT_DECISIONS
from services._runtime.bus.api import Delivery
from services._runtime.bus.nats import NatsBus
from tests.bench.figures import Spread
from tests.bench.flooder import APP, KINDS
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, say, tell, write_record
from tests.support.cluster_lab import ServiceProcess
from tests.support.secured_nats import SecuredNats

FLOODER, HONEST = "gpu-01", "gpu-02"
BUSY, CYCLE_S = 20, 0.5
"""Applications whose demand rises and falls so often; that of all others does so in 20 s."""
PROCESSORS = 512
"""Of the simulated host: with fewer, containers would wait for each other instead of for their limits."""


class Count:
    """What an observer sees of gpu-02's applications."""

    def __init__(self, busy: frozenset[str]) -> None:
        self.busy = busy
        self.decisions = self.periods = self.throttled = 0
        self.followed: set[tuple[str, int]] = set()

    def batch(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, CfsBatch):
            self.periods += 1
            self.throttled += bool(delivery.message.column("throttled").any())

    def decided(self, delivery: Delivery) -> None:
        message = delivery.message
        if not isinstance(message, LimitDecisions) or message.app == APP or not message.row_count:
            return
        self.decisions += 1
        if message.app in self.busy:
            self.followed.add((message.app, int(time.monotonic() / CYCLE_S)))

    def take(self) -> dict[str, int]:
        taken = {
            "decisions": self.decisions,
            "followed": len(self.followed),
            "periods": self.periods,
            "throttled": self.throttled,
        }
        self.__init__(self.busy)  # type: ignore[misc]
        return taken


def load(apps: list[str]) -> list[dict[str, Any]]:
    """A container of each application: the first ones' demand rises twice a second, that of others once in 20 s."""
    busy = [{"duration_s": CYCLE_S / 2, "cpu_cores": cores, "memory_bytes": 110 << 20} for cores in (0.1, 0.9)]
    calm = [
        {"duration_s": duration_s, "cpu_cores": cores, "memory_bytes": 110 << 20}
        for duration_s, cores in ((19.0, 0.2), (1.0, 0.6))
    ]
    return [
        {
            "app": app,
            "scenario": {
                "containers": [
                    {
                        "name": app,
                        "threads": 2,
                        "phases": busy if number < BUSY else calm,
                        "offset_s": CYCLE_S * number / BUSY if number < BUSY else 20.0 * number / len(apps),
                    }
                ]
            },
            "quota_us": 50_000,
            "limit_bytes": 256 << 20,
        }
        for number, app in enumerate(apps)
    ]


def launch(
    server: SecuredNats, directory: Path, role: Role, node: str | None = None, **settings: str
) -> ServiceProcess:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "TURNBUCKLE_"))}
    ours = {f"TURNBUCKLE_{name}": value for name, value in {"HEALTH_PORT": "0", **settings}.items()}
    return ServiceProcess(role.value, kept | server.environment(role, node) | ours, directory / f"{role.value}.log")


async def announce(operator: NatsBus, app: str) -> None:
    await operator.bucket(APPS).put(app, AppSpec(name=app, cpu_limit=2.0, memory_limit=2 << 30))


async def flood(server: SecuredNats, kind: str, seconds: float) -> int:
    """Messages that the flooder could write."""
    process = await asyncio.create_subprocess_exec(
        *("nice", "-n", "19", sys.executable, "-m", "tests.bench.flooder", str(server.port)),
        *(server.seed_file(Role.AGENT, FLOODER), FLOODER, kind, str(seconds)),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    return int(out.split()[-1]) if out.split() else 0


async def measure(apps: int, seconds: float, kinds: list[str]) -> list[dict[str, Any]]:
    """Counts before and during each flood."""
    rows = []
    with tempfile.TemporaryDirectory() as kept:
        directory = Path(kept)
        async with SecuredNats(directory / "secrets", nodes=(FLOODER, HONEST)) as server:
            await server.declare()
            operator, observer = await server.bus(Role.OPERATOR), await server.bus(Role.OBSERVER)
            names = [f"app{number}" for number in range(apps)]
            for app in [*names, APP]:
                await announce(operator, app)
            (directory / "load.json").write_text(json.dumps(load(names)))
            services = [launch(server, directory, Role.ALLOCATOR)]
            services.append(
                launch(
                    server,
                    directory,
                    Role.AGENT,
                    HONEST,
                    AGENT__NODE=HONEST,
                    AGENT__HOST="simulated",
                    AGENT__SIMULATED_CPUS=str(PROCESSORS),
                    AGENT__SCENARIO_FILE=str(directory / "load.json"),
                    AGENT__STATE_DIRECTORY=str(directory / "state"),
                )
            )
            count = Count(frozenset(names[:BUSY]))
            for app in names[:BUSY]:
                await observer.subscribe(CFS.subject("tb", app=app, node=HONEST), count.batch)
            await observer.subscribe(LIMIT_DECISIONS.pattern("tb"), count.decided)
            try:
                for service in services:
                    await service.ready(60)
                await asyncio.sleep(10)
                for kind in kinds:
                    count.take()
                    await asyncio.sleep(seconds)
                    before = count.take()
                    sent = await flood(server, kind, seconds)
                    during = count.take()
                    rows.append({"apps": apps, "kind": kind, "sent": sent, "before": before, "during": during})
                    say(json.dumps(rows[-1]))
                    await asyncio.sleep(8)
            finally:
                for service in services:
                    service.kill()
                print(
                    (directory / "allocator.log").read_text()[-3000:] if os.environ.get("SHOW") else "", file=sys.stderr
                )
            await operator.close(2)
            await observer.close(2)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Of each kind of flood: what was counted during it, of what was counted before it."""
    kept_of = f"{'decisions, % of before':>28}{'followed, % of before':>28}"
    lines = [f"{'flood':<10}{'messages':>12}{kept_of}   throttled periods"]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        chosen = [row for row in rows if row["kind"] == kind]
        kept = [
            Spread.of([100 * row["during"][what] / max(1, row["before"][what]) for row in chosen]).text(0)
            for what in ("decisions", "followed")
        ]
        throttled = "; ".join(f"{row['before']['throttled']} -> {row['during']['throttled']}" for row in chosen)
        sent = Spread.of([row["sent"] for row in chosen]).median
        lines.append(f"{kind:<10}{sent:>12,.0f}{kept[0]:>28}{kept[1]:>28}   {throttled}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.flood", description=__doc__.partition("\n")[0])
    parser.add_argument("--apps", type=int, default=1, help="applications on the other host")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each flood")
    parser.add_argument("--rounds", type=int, default=1, help="how often everything is started and flooded")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args()
    machine, rows = this_machine(), []
    for _ in range(given.rounds):
        rows += asyncio.run(measure(given.apps, given.seconds, given.kinds))
    record = {"machine": machine.as_dict(), "floods": rows}
    path = write_record(record, OUTPUT / f"flood-{given.apps}.json")
    tell("\n".join([machine.line, "", table(rows)]), record, [path], as_json=given.json)


if __name__ == "__main__":
    main()
