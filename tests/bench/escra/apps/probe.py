"""`python -m tests.bench.escra.apps.probe APP`: a closed-loop check of an application without limits.

Starts it, sends requests over a few connections for some seconds (all kinds, seeded), and prints what one request costs
in each container, what the application can do on a core, and its memory. No policy, no bus.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from services._host.cgroupfs import detect
from tests.bench.escra.apps.application import Application, BatchApplication
from tests.bench.escra.apps.registry import APPLICATIONS
from tests.bench.escra.deploy import Deployment, deploy


@dataclass(slots=True)
class Tally:
    """What a probe saw: seconds per answer by kind, and wrong answers."""

    latencies_s: dict[str, list[float]] = field(default_factory=dict)
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, kind: str, latency_s: float, *, right: bool) -> None:
        """Note one answer."""
        self.latencies_s.setdefault(kind, []).append(latency_s)
        if not right:
            self.wrong[kind] += 1

    @property
    def count(self) -> int:
        """All answers."""
        return sum(len(each) for each in self.latencies_s.values())


class Connection:
    """A kept HTTP/1.1 connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def exchange(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """One request and its answer."""
        head = f"{method} {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        status = int(answer.split(b" ", 2)[1])
        if b"transfer-encoding: chunked" in answer:
            return status, await self._chunked()
        length = int(answer.partition(b"content-length:")[2].partition(b"\r\n")[0])
        return status, await self._reader.readexactly(length)

    async def _chunked(self) -> bytes:
        parts = []
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            parts.append((await self._reader.readexactly(size + 2))[:-2])
        await self._reader.readexactly(2)
        return b"".join(parts)

    def close(self) -> None:
        """Let go."""
        self._writer.close()


async def load(app: Application, address: tuple[str, int], connections: int, seconds: float) -> Tally:
    """Closed loop: every connection sends its next request when it has an answer."""
    tally = Tally()
    end_s = time.monotonic() + seconds

    async def client(number: int) -> None:
        rng = random.Random(number)
        connection = Connection(*await asyncio.open_connection(*address, limit=1 << 22))
        sequence = number << 32
        while (start_s := time.monotonic()) < end_s:
            request = app.request(rng, sequence)
            sequence += 1
            status, body = await connection.exchange(request.method, request.path, request.body)
            right = app.check(request, status, body)
            tally.add(request.kind, time.monotonic() - start_s, right=right)
            if not right and len(tally.examples) < 3:
                tally.examples.append(f"{request.path} {status} {body[:200]!r} lacks {request.expected!r}")
        connection.close()

    await asyncio.gather(*(client(number) for number in range(connections)))
    return tally


def used_ns(deployment: Deployment) -> dict[str, int]:
    """CPU time of every container so far, in ns; cgroup v1 (cpuacct.usage) or v2 (cpu.stat)."""
    return {name: _read_cpu_ns(each) for name, each in deployment.names.items()}


def memory_bytes(deployment: Deployment) -> dict[str, int]:
    """Memory of every container, page cache included, as its limit counts it."""
    file = "memory/docker/{}/memory.usage_in_bytes" if detect().version == 1 else "docker/{}/memory.current"
    return {name: int(_read(file.format(each))) for name, each in deployment.names.items()}


def _read_cpu_ns(container_id: str) -> int:
    if detect().version == 1:
        return int(_read(f"cpuacct/docker/{container_id}/cpuacct.usage"))
    return 1000 * int(_read(f"docker/{container_id}/cpu.stat").split()[1])


def _read(path: str) -> str:
    return Path("/sys/fs/cgroup", path).read_text(encoding="ascii")


async def probe(app: Application, connections: int, seconds: float) -> int:
    """Deploy, load, print; the exit status is 1 if any answer was wrong."""
    start_s = time.monotonic()
    deployment = await deploy(app, f"probe-{app.name}")
    try:
        started_s = time.monotonic() - start_s
        await deployment.wait_ready()
        ready_s = time.monotonic() - start_s
        print(f"{app.name}: {len(app.containers)} containers, started {started_s:.1f} s, ready {ready_s:.1f} s")
        if isinstance(app, BatchApplication):
            print(await app.run_batch(deployment))
            return 0
        await load(app, deployment.address, connections, 1.0)
        return await _measure(deployment, connections, seconds)
    finally:
        await deployment.stop()


async def _measure(deployment: Deployment, connections: int, seconds: float) -> int:
    before_ns, own_s, start_s = used_ns(deployment), time.process_time(), time.monotonic()
    tally = await load(deployment.app, deployment.address, connections, seconds)
    wall_s, own_s = time.monotonic() - start_s, time.process_time() - own_s
    after_ns = used_ns(deployment)
    used_ms = {name: (after_ns[name] - before_ns[name]) / 1e6 for name in deployment.names}
    _print_costs(deployment, tally, used_ms, wall_s)
    print(
        f"  {tally.count / wall_s:.0f} requests/s over {connections} connections; this client {own_s / wall_s:.2f} core"
    )
    for kind, latencies_s in sorted(tally.latencies_s.items()):
        ordered = sorted(latencies_s)
        p50_ms, p99_ms = (1e3 * ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
        wrong = tally.wrong[kind]
        print(f"  {kind:12} {len(ordered):6d} requests, p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms, {wrong} wrong")
    print(*tally.examples, sep="\n")
    start_s = time.monotonic()
    await deployment.reset()
    after_mib = {name: each >> 20 for name, each in memory_bytes(deployment).items()}
    print(f"  reset {time.monotonic() - start_s:.2f} s, memory after it {after_mib} MiB")
    return 1 if tally.wrong else 0


def _print_costs(deployment: Deployment, tally: Tally, used_ms: dict[str, float], wall_s: float) -> None:
    memory = memory_bytes(deployment)
    for name, each_ms in used_ms.items():
        cost = f"{each_ms / tally.count:7.3f} ms/request {each_ms / 1e3 / wall_s:6.3f} core"
        print(f"  {name:12} {cost} {memory[name] >> 20:5d} MiB")
    cost_ms, rate_rps = sum(used_ms.values()) / tally.count, deployment.app.base_rate_rps
    base = f"{rate_rps * cost_ms / 1e3:.2f} core at {rate_rps:.0f}/s"
    print(f"  all {cost_ms:.3f} ms/request: {base}, {1e3 / cost_ms:.0f}/s a core")


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("app", choices=sorted(APPLICATIONS))
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0)
    arguments = parser.parse_args()
    os.nice(5)
    return asyncio.run(probe(APPLICATIONS[arguments.app], arguments.connections, arguments.seconds))


if __name__ == "__main__":
    sys.exit(main())
