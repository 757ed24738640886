"""What one host's key can do to the allocation of another host's applications by flooding the bus.

``python -m tests.bench.flood [--apps 200] [--seconds 6] [--kinds garbage large]``. A server as `turnbuckle nats config`
sets it up, an allocator, an agent on gpu-02 with simulated containers of so many applications, and floods of gpu-01's
key: garbage of 200 bytes, garbage of 1 MB, memory requests, facts, batches of 2,000 containers. Counted are decisions
of the first application, and those of its periods that were throttled, beside as many seconds before the flood.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.limits import LimitDecisions
from schemas.permissions import Role
from schemas.streams import APPS
from schemas.subjects import CFS, LIMIT_DECISIONS
from services._runtime.bus.api import Delivery
from services._runtime.bus.nats import NatsBus
from tests.bench.flooder import APP, KINDS
from tests.support.cluster_lab import ServiceProcess
from tests.support.secured_nats import SecuredNats

FLOODER, HONEST = "gpu-01", "gpu-02"
WATCHED = "bank"


class Count:
    """What an observer sees of the watched application."""

    def __init__(self) -> None:
        self.decisions = self.periods = self.throttled = 0

    def batch(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, CfsBatch):
            self.periods += 1
            self.throttled += bool(delivery.message.column("throttled").any())

    def decided(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, LimitDecisions):
            self.decisions += bool(delivery.message.row_count)

    def take(self) -> dict[str, int]:
        taken = {"decisions": self.decisions, "periods": self.periods, "throttled": self.throttled}
        self.__init__()  # type: ignore[misc]
        return taken


def load(apps: list[str]) -> list[dict[str, Any]]:
    """Containers whose demand changes twice a second."""
    return [
        {
            "app": app,
            "scenario": {
                "containers": [
                    {
                        "name": app,
                        "threads": 2,
                        "phases": [
                            {"duration_s": 0.25, "cpu_cores": low, "memory_bytes": 100 << 20},
                            {"duration_s": 0.25, "cpu_cores": high, "memory_bytes": 120 << 20},
                        ],
                    }
                ]
            },
            "quota_us": 50_000,
            "limit_bytes": 256 << 20,
        }
        for app, low, high in ((app, 0.1, 0.9) for app in apps)
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
        *(sys.executable, "-m", "tests.bench.flooder", str(server.port)),
        *(server.seed_file(Role.AGENT, FLOODER), FLOODER, kind, str(seconds)),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    return int(out.split()[-1]) if out.split() else 0


async def measure(apps: int, seconds: float, kinds: list[str]) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as kept:
        directory = Path(kept)
        async with SecuredNats(directory / "secrets", nodes=(FLOODER, HONEST)) as server:
            await server.declare()
            operator, observer = await server.bus(Role.OPERATOR), await server.bus(Role.OBSERVER)
            names = [WATCHED, *(f"app{number}" for number in range(1, apps))]
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
                    AGENT__SCENARIO_FILE=str(directory / "load.json"),
                    AGENT__STATE_DIRECTORY=str(directory / "state"),
                )
            )
            count = Count()
            await observer.subscribe(CFS.subject("tb", app=WATCHED, node=HONEST), count.batch)
            await observer.subscribe(LIMIT_DECISIONS.subject("tb", app=WATCHED), count.decided)
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
                    print(json.dumps(rows[-1]), flush=True)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apps", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.apps, arguments.seconds, arguments.kinds))


if __name__ == "__main__":
    main()
