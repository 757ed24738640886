"""How long a container that wakes up waits for CPU. ``make bench-reaction``, or ``make bench-reaction ARGS=--quick``.

Containers rest for seconds, so that their quotas fall to the headroom, and then have a burst of work. The application
has room, so every millisecond that a burst takes longer than its work was spent until the loop had seen that the
container is throttled, and had raised its quota, several times over. Compared in turn: counters in files, the kernel's
table (which shows who is throttled before the period is counted), and looks at it when the kernel tells of one. The
last way is without any limit: what two shared cores alone cost. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from schemas.apps import AppSpec
from tests.bench.cluster import Cluster, open_cluster
from tests.bench.containers import LIMIT_BYTES, MANAGED_ROOT, Groups
from tests.bench.loop import why_not
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, write_record

APP: Final = "reaction"
CONTAINERS: Final = 4
BURST_MS: Final = 300.0
PAUSE_S: Final = 3.0
SETTLE_S: Final = 6.0
QUOTA_US: Final = 20_000
CPU_LIMIT: Final = 6.0


@dataclass(frozen=True, slots=True)
class Way:
    """How the agent watches."""

    name: str
    kernel_programs: str
    early_looks: int
    mode: str = "enforce"


WAYS: Final = (
    Way("files", "off", 0),
    Way("files, usage, 4 times", "off", 4),
    Way("files, usage, 9 times", "off", 9),
    Way("table", "auto", 0),
    Way("table, told, 1 look", "auto", 1),
    Way("table, told, 4 looks", "auto", 4),
    Way("table, told, 9 looks", "auto", 9),
    Way("no limits", "auto", 0, "observe"),
)


@dataclass(slots=True)
class Reaction:
    """Waiting time of bursts, ms, and CPU of the agent per period, us, by repetition."""

    way: str
    waits_ms: list[float] = field(default_factory=list)
    agent_us: list[float] = field(default_factory=list)

    def row(self, baseline: float) -> str:
        """A line of the table."""
        ranked = sorted(self.waits_ms)
        p50, p90, p99 = (ranked[int(share * (len(ranked) - 1))] for share in (0.5, 0.9, 0.99))
        cost = statistics.median(self.agent_us)
        waits = f"{p50:>10.0f}{p90:>10.0f}{p99:>10.0f}{ranked[-1]:>10.0f}{p50 / baseline:>10.2f}"
        return f"{self.way:<26}{waits}{len(ranked):>8}{cost:>14.0f}"


def bursting(quota_us: int | None) -> Groups:
    """Containers with a burst worker each, which prints a line per burst."""
    program = str(Path(__file__).with_name("burst_work.py"))
    command = [sys.executable, "-S", program]
    commands = [[*command, str(number), str(BURST_MS), str(PAUSE_S)] for number in range(CONTAINERS)]
    return Groups(APP, commands, quota_us, subprocess.PIPE)


async def run_way(cluster: Cluster, way: Way, seconds: float) -> Reaction:
    """One window of one way, with agent and allocator as fresh processes."""
    spec = AppSpec(name=APP, cpu_limit=CPU_LIMIT, memory_limit=4 * CONTAINERS * LIMIT_BYTES, mode=way.mode)
    await cluster.announce(spec)
    values = {
        "NODE": "bench-node",
        "MANAGED_ROOT": MANAGED_ROOT,
        "DOCKER": "off",
        "KERNEL_PROGRAMS": way.kernel_programs,
        "THROTTLE_POLLS_PER_PERIOD": str(way.early_looks),
    }
    environment = {f"TURNBUCKLE_AGENT__{name}": value for name, value in values.items()}
    with bursting(QUOTA_US if way.mode == "enforce" else None) as groups:
        async with (
            cluster.run("services.allocator") as allocator,
            cluster.run("services.agent", environment, "agent") as agent,
        ):
            await asyncio.sleep(SETTLE_S)
            window = await cluster.measure(seconds, agent, allocator)
        for worker in groups.processes:
            worker.kill()
        printed = [worker.communicate()[0].splitlines() for worker in groups.processes]
    bursts = [tuple(map(float, line.split())) for lines in printed for line in lines[1:]]
    waits = [took - worked for worked, took in bursts]
    if not waits:
        raise RuntimeError(f"{way.name}: no burst ended within {seconds:g} s")
    return Reaction(way.name, waits, [window.cpu_us["agent"] / window.periods])


async def measure(ways: Sequence[Way], seconds: float, repetitions: int) -> list[Reaction]:
    """Ways take turns, so that a change of the machine's load meets all."""
    results = {way.name: Reaction(way.name) for way in ways}
    async with open_cluster() as cluster:
        for turn in range(repetitions):
            for way in ways:
                say(f"{way.name}, {turn + 1} of {repetitions}")
                found = await run_way(cluster, way, seconds)
                results[way.name].waits_ms += found.waits_ms
                results[way.name].agent_us += found.agent_us
        await cluster.withdraw_all()
    return list(results.values())


def main(arguments: list[str]) -> int:
    """Run, print, and write the record."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.reaction", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two minutes")
    parser.add_argument("--seconds", type=float, help="length of each window (default 20; quick: 10)")
    parser.add_argument("--repetitions", type=int, help="default 3; quick: 1")
    parser.add_argument("--ways", default="", help="only those whose name contains one of these words, by comma")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args(arguments)
    if (reason := why_not()) is not None:
        say(reason)
        return UNAVAILABLE
    machine = this_machine()
    seconds, repetitions = (
        given.seconds or (10.0 if given.quick else 20.0),
        given.repetitions or (1 if given.quick else 3),
    )
    words = [word.strip() for word in given.ways.split(",")]
    ways = [way for way in WAYS if any(word in way.name for word in words)]
    results = asyncio.run(measure(ways, seconds, repetitions))
    record: dict[str, Any] = {"machine": machine.as_dict(), "ways": [asdict(result) for result in results]}
    path = write_record(record, OUTPUT / "reaction.json")
    if given.json:
        print(path.read_text())
        return 0
    files = statistics.median(results[0].waits_ms)
    columns = "".join(f"{name:>10}" for name in ("p50 ms", "p90", "p99", "max", "to files"))
    header = f"{'way':<26}{columns}{'bursts':>8}{'agent us/tick':>14}"
    title = f"waiting time of bursts of {BURST_MS:g} ms of work after a rest of {PAUSE_S:g} s and more"
    print("\n".join([machine.line, "", title, header, *(result.row(files) for result in results)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
