"""What the export of traces and metrics costs the agent: ``python -m tests.bench.telemetry_overhead``.

One real agent over 100 control groups (30 of them busy), a real allocator and nats-server, and a collector that takes
everything (OTLP over HTTP, in this process). The export of spans is switched on and off in turns, in both services at
once; that of metrics, once a minute by default, is measured by doing it more often. CPU time is that of the agent's
whole process, the exporting threads included. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from schemas.apps import PERIOD_US
from schemas.cfs import CfsBatch
from schemas.subjects import CFS
from services._runtime.bus.api import Delivery
from tests.bench.cluster import Cluster, Process, open_cluster
from tests.bench.containers import MANAGED_ROOT, Containers
from tests.bench.loop import why_not
from tests.bench.machine import Machine, process_cpu_ns, this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell, write_record
from tests.bench.scenario_agent import spec_for
from tests.support.otlp_receiver import OtlpReceiver, otlp_receiver

CONTAINERS = 100
ALLOWED_SHARE = 0.03
SETTLE_S = 5.0
FLUSH_S = 0.5
"""At the end of each window: what is left is sent, and counts."""
METRIC_EXPORTS = 10
"""In a window of those that count metrics."""
METRIC_INTERVAL_S = 60.0
"""The default of OTEL_METRIC_EXPORT_INTERVAL."""
NODE = "bench-node"
PERIOD_NS = PERIOD_US * 1_000


@dataclass(frozen=True, slots=True)
class Pair:
    """Two neighbouring windows; CPU ms of the agent per ten ticks, which are a second unless it is late."""

    off_ms: float
    on_ms: float
    spans: float = 0.0
    """Per second."""
    off_late_ms: tuple[float, ...] = ()
    """How late each tick was."""
    on_late_ms: tuple[float, ...] = ()

    @property
    def share(self) -> float:
        """By how much the export makes it dearer."""
        return self.on_ms / self.off_ms - 1


@dataclass(slots=True)
class Results:
    """What was seen."""

    machine: Machine
    window_s: float
    spans: list[Pair] = field(default_factory=list)
    metrics: list[Pair] = field(default_factory=list)
    noted: list[dict[str, int]] = field(default_factory=list)
    """Of each window with spans, by the agent itself, ns: the process, spans in its loop, the exporting thread."""
    allocator_noted: list[dict[str, int]] = field(default_factory=list)
    """As `noted`, by the allocator."""
    resident_mib: dict[str, float] = field(default_factory=dict)
    """Of the agent, without any OTEL_* variable and with export."""
    busy_share: float = 0.0
    """Of the machine's processors while it was measured."""

    @property
    def metric_export_ms(self) -> float:
        """CPU of one export of metrics."""
        return statistics.median(pair.on_ms - pair.off_ms for pair in self.metrics) * self.window_s / METRIC_EXPORTS

    @property
    def off_ms(self) -> float:
        """CPU ms per second without export."""
        return statistics.median(pair.off_ms for pair in self.spans)

    @property
    def spans_share(self) -> float:
        """Median of the pairs."""
        return statistics.median(pair.share for pair in self.spans)

    @property
    def noted_share(self) -> float:
        """Spans, by the agent's own account: what they take, of what it takes without them."""
        shares = []
        for window in self.noted:
            spent_ns = window["loop_ns"] + window["thread_ns"]
            shares.append(spent_ns / (window["process_ns"] - spent_ns))
        return statistics.median(shares)

    @property
    def metrics_share(self) -> float:
        """At the default interval."""
        return self.metric_export_ms / METRIC_INTERVAL_S / self.off_ms

    @property
    def share(self) -> float:
        """What export makes the agent dearer by; the pairs' difference is the check on it."""
        return self.noted_share + self.metrics_share

    def _noted_ms(self, noted: list[dict[str, int]]) -> str:
        loop, thread = (statistics.median(each[name] for each in noted) / 1e6 for name in ("loop_ns", "thread_ns"))
        return f"{loop / self.window_s:.2f} ms/s in the loop, {thread / self.window_s:.2f} ms/s in the exporting thread"

    def late(self, which: str) -> str:
        """How late ticks were, export ``off`` or ``on``."""
        late_ms = sorted(ms for pair in self.spans for ms in getattr(pair, f"{which}_late_ms"))
        p50, p99 = (late_ms[int(share * (len(late_ms) - 1))] for share in (0.5, 0.99))
        return f"{p50:8.2f} ms, p99 {p99:.2f}"

    @property
    def table(self) -> str:
        """For people."""
        shares = sorted(pair.share for pair in self.spans)
        on_ms, made = (statistics.median(getattr(pair, name) for pair in self.spans) for name in ("on_ms", "spans"))
        within = "within" if self.share <= ALLOWED_SHARE else "above"
        head = f"agent, {CONTAINERS} containers, {len(self.spans)} pairs of windows of {self.window_s:g} s"
        lines = (
            self.machine.line,
            f"{head}, processors {self.busy_share:.0%} busy",
            f"  CPU, export off   {self.off_ms:8.2f} ms/s",
            f"  CPU, spans on     {on_ms:8.2f} ms/s   {made:.1f} spans/s",
            f"  spans, noted      {self.noted_share:+8.2%}        ({self._noted_ms(self.noted)})",
            f"  allocator's spans, noted {self._noted_ms(self.allocator_noted)}",
            f"  spans, difference {self.spans_share:+8.2%}        (pairs: {shares[0]:+.2%} to {shares[-1]:+.2%})",
            f"  metrics cost      {self.metrics_share:+8.2%}        ({self.metric_export_ms:.1f} ms once a minute)",
            f"  export costs      {self.share:+8.2%}        {within} {ALLOWED_SHARE:.0%}",
            *(f"  ticks late, {name:7}{self.late(name):s}" for name in ("off", "on")),
            *(f"  resident, {name:9}{size:8.1f} MiB" for name, size in self.resident_mib.items()),
        )
        return "\n".join(lines)

    @property
    def record(self) -> dict[str, Any]:
        """For machines."""
        return {
            "machine": self.machine.as_dict(),
            "containers": CONTAINERS,
            "window_s": self.window_s,
            "export_share": self.share,
            "allowed_share": ALLOWED_SHARE,
            "spans": [asdict(pair) | {"share": pair.share} for pair in self.spans],
            "metrics": [asdict(pair) for pair in self.metrics],
            "noted": self.noted,
            "allocator_noted": self.allocator_noted,
            "metric_export_ms": self.metric_export_ms,
            "resident_mib": self.resident_mib,
            "busy_share": self.busy_share,
        }


class Bench:
    """A cluster that runs, and the processes whose export can be switched."""

    def __init__(self, receiver: OtlpReceiver, window_s: float, agent: Process, allocator: Process) -> None:
        self._receiver = receiver
        self._window_s = window_s
        self.agent = agent
        self.allocator = allocator
        self.ticks = 0
        self.late_ms: list[float] = []
        """Of each tick since the list was last taken."""

    def count(self, delivery: Delivery) -> None:
        """One tick; ticks are due at multiples of the period of the wall clock."""
        self.ticks += 1
        if isinstance(delivery.message, CfsBatch):
            self.late_ms.append(delivery.message.time_ns % PERIOD_NS / 1e6)

    def switch(self, *, on: bool) -> None:
        """Spans, in both."""
        for process in (self.agent, self.allocator):
            os.kill(process.pid, signal.SIGUSR1 if on else signal.SIGUSR2)

    async def spans_pair(self, *, on_first: bool) -> Pair:
        """One window with spans and one without."""
        found = {on: await self._spans_window(on=on) for on in (on_first, not on_first)}
        return Pair(found[False][0], found[True][0], found[True][1], *(tuple(found[on][2]) for on in (False, True)))

    async def _spans_window(self, *, on: bool) -> tuple[float, float, list[float]]:
        self.late_ms = late_ms = []
        cpu_ms, ticks, spans = self._cpu_ms(), self.ticks, self._spans()
        if on:
            self.switch(on=True)
        await asyncio.sleep(self._window_s)
        if on:
            self.switch(on=False)
        await asyncio.sleep(FLUSH_S)
        used_ms = 10 * (self._cpu_ms() - cpu_ms) / (self.ticks - ticks)
        return used_ms, (self._spans() - spans) / self._window_s, late_ms

    async def metrics_pair(self, *, on_first: bool) -> Pair:
        """One window with exports of metrics and one without."""
        found = {on: await self._metrics_window(on=on) for on in (on_first, not on_first)}
        return Pair(found[False], found[True])

    async def _metrics_window(self, *, on: bool) -> float:
        before_ms, ticks = self._cpu_ms(), self.ticks
        for _ in range(METRIC_EXPORTS):
            if on:
                os.kill(self.agent.pid, signal.SIGHUP)
            await asyncio.sleep(self._window_s / METRIC_EXPORTS)
        return 10 * (self._cpu_ms() - before_ms) / (self.ticks - ticks)

    def _cpu_ms(self) -> float:
        return process_cpu_ns(self.agent.pid) / 1e6

    def _spans(self) -> float:
        return float(sum(span.service == "turnbuckle-agent" for span in self._receiver.spans))


def environment(service: str, receiver: OtlpReceiver | None) -> dict[str, str]:
    """Of a process; spans go out as often as they do by default."""
    agent = {"NODE": NODE, "MANAGED_ROOT": MANAGED_ROOT, "DOCKER": "off"}
    ours = {f"TURNBUCKLE_AGENT__{name}": value for name, value in agent.items()} if service == "agent" else {}
    if receiver is None:
        return ours
    export = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_METRIC_EXPORT_INTERVAL": "1000000000"}
    return ours | export | {"BENCH_SERVICE": service}


async def measure(pairs: int, window_s: float) -> Results:
    """Everything."""
    results = Results(this_machine(), window_s)
    with otlp_receiver() as receiver, Containers(CONTAINERS) as containers:
        async with open_cluster() as cluster:
            await cluster.announce(spec_for(containers.count))
            say("agent without telemetry")
            async with (
                cluster.run("services.allocator"),
                cluster.run("services.agent", environment("agent", None)) as agent,
            ):
                await _settle(cluster, agent)
                results.resident_mib["off"] = _resident_mib(agent.pid)
            async with _running(cluster, receiver, window_s) as bench:
                await _in_turns(bench, results, pairs)
                results.resident_mib["on"] = _resident_mib(bench.agent.pid)
                results.noted = (await bench.agent.stop())["windows"]
                results.allocator_noted = (await bench.allocator.stop())["windows"]
    return results


@asynccontextmanager
async def _running(cluster: Cluster, receiver: OtlpReceiver, window_s: float) -> AsyncIterator[Bench]:
    async with (
        cluster.run("tests.bench.switched", environment("allocator", receiver)) as allocator,
        cluster.run("tests.bench.switched", environment("agent", receiver)) as agent,
    ):
        await _settle(cluster, agent, allocator)
        bench = Bench(receiver, window_s, agent, allocator)
        subscription = await cluster.bus.subscribe(CFS.pattern(cluster.bus.root), bench.count)
        bench.switch(on=False)
        await asyncio.sleep(FLUSH_S)
        yield bench
        await subscription.stop()


async def _in_turns(bench: Bench, results: Results, pairs: int) -> None:
    """Which window comes first takes turns too: what drifts meets both alike."""
    busy = [_busy_s()]
    for number in range(pairs):
        say(f"spans, pair {number + 1} of {pairs}")
        results.spans.append(await bench.spans_pair(on_first=bool(number % 2)))
    busy.append(_busy_s())
    for number in range(max(1, pairs // 3)):
        say(f"metrics, pair {number + 1} of {max(1, pairs // 3)}")
        results.metrics.append(await bench.metrics_pair(on_first=bool(number % 2)))
    results.busy_share = (busy[1][0] - busy[0][0]) / (busy[1][1] - busy[0][1])


async def _settle(cluster: Cluster, *processes: Process) -> None:
    await cluster.until_ordered(CONTAINERS, *processes)
    await asyncio.sleep(SETTLE_S)


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _busy_s() -> tuple[float, float]:
    """Busy and total time of all processors, in ticks."""
    ticks = [int(part) for part in Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]]
    total = sum(ticks)
    return float(total - ticks[3] - ticks[4]), float(total)


def main() -> int:
    """Measure and report; 69 where this machine does not allow it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.telemetry_overhead", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--pairs", type=int, default=12, help="pairs of windows (default 12)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a window (default 10)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args()
    if reason := why_not():
        print(f"telemetry_overhead: {reason}", file=sys.stderr)
        return UNAVAILABLE
    results = asyncio.run(measure(given.pairs, given.seconds))
    path = write_record(results.record, OUTPUT / "telemetry.json")
    tell(results.table, results.record, [path], as_json=given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
