"""How long the planner plans. ``make bench-planner``.

CPU seconds of one process, on the inputs that the released planners of Cephalo and Zorse publish and on large made-up
ones, beside what the design had stated: the released planners by the wall clock (measured once, on such a machine$
too), and CPU seconds of a prototype of ours. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from services.planner.core import cephalo, zorse
from services.planner.core.comparisons import split_by_speed, split_whole
from services.planner.core.profile import Device, Latency, LayerTimes, MemoryProfile, Network
from services.planner.core.rules import RELEASED
from tests.bench.figures import Spread
from tests.bench.machine import Machine, this_machine
from tests.bench.outcome import OUTPUT, say, tell, write_record
from tests.support.peer_planners import DATA, cephalo_problem, read, zorse_problem

SEED: Final = 2026


@dataclass(frozen=True, slots=True)
class Case:
    """Something to plan."""

    name: str
    plan: Callable[[], object]
    stated_released_s: str
    stated_prototype_s: str
    repetitions: int


def cases() -> tuple[Case, ...]:
    """From small to large."""
    public = [
        read(f"cephalo/{path.name}") | {"file": path.name} for path in sorted((DATA / "cephalo").glob("*.*.json"))
    ]
    return (
        Case(
            "Cephalo: its ten public inputs",
            lambda: [_as_released(one) for one in public],
            "6.6, 10.9",
            "0.07, 0.14",
            7,
        ),
        Case("Zorse: its three public inputs", _public_pipelines, "-", "-", 7),
        Case("uneven: 64 devices, batch of 128", lambda: cephalo.plan(_many_devices()), "-", "1.0", 5),
        Case("pipeline: 128 devices on 16 machines", lambda: zorse.plan(_many_machines()), "-", "7.4", 3),
    )


def _as_released(expected: dict[str, Any]) -> object:
    problem = cephalo_problem(expected["model_name"], sum(expected["uneven_batch_sizes"]))
    if ".dp_ga." in expected["file"]:
        return cephalo.plan(problem, RELEASED)
    if ".dp." in expected["file"]:
        return split_whole(problem)
    return split_by_speed(
        [times.forward.slope + times.backward.slope for times in problem.layers[0].times], problem.batch
    )


def _public_pipelines() -> list[object]:
    tiny = zorse_problem("deepspeedllama_tiny", "example_cluster_info.json", 512, 128)
    large = zorse_problem("deepspeedllama_7b", "clusterA_info.json", 4_096, 256)
    return [zorse.plan(problem, RELEASED) for problem in (tiny, large, tiny)]


def _many_devices() -> cephalo.Problem:
    generator = random.Random(SEED)
    devices = tuple(Device(rank, "x", generator.uniform(16, 80)) for rank in range(64))
    times = tuple(
        LayerTimes(Latency(generator.uniform(1, 6), 0.5), Latency(generator.uniform(2, 12), 1.0)) for _ in devices
    )
    memory = MemoryProfile((1.0, 1.4, 1.8))
    return cephalo.Problem(devices, (cephalo.Layers(times, 2.0, 4.0),), (memory,) * 64, 3_000_000_000, 128)


def _many_machines() -> zorse.Problem:
    generator = random.Random(SEED)
    devices = tuple(Device(rank, f"k{rank // 8 % 4}", 40.0, rank // 8) for rank in range(128))
    between = {frozenset((i, j)): generator.choice((1.25, 5.0, 12.5)) for i in range(16) for j in range(i)}
    rates = tuple(tuple(200.0 if i == j else between[frozenset((i, j))] for j in range(16)) for i in range(16))
    latencies = tuple(tuple(0.004 if i == j else 0.5 for j in range(16)) for i in range(16))
    times = {f"k{kind}": LayerTimes(Latency(2.0 + kind, 0.5), Latency(4.0 + 2 * kind, 1.0)) for kind in range(4)}
    model = zorse.Model((zorse.LayerClass(times, 200_000_000, 33_554_432),), (0,) * 96)
    return zorse.Problem(devices, Network(rates, latencies), model, 1_024)


def cpu_s(plan: Callable[[], object]) -> float:
    """CPU time of this process for one call."""
    gc.collect()
    began_s = time.process_time()
    plan()
    return time.process_time() - began_s


def measure() -> dict[str, Spread]:
    """CPU seconds by case; the first call of each only warms up, where one is short."""
    found: dict[str, Spread] = {}
    for case in cases():
        say(case.name)
        if case.repetitions > 3:
            case.plan()
        found[case.name] = Spread.of([cpu_s(case.plan) for _ in range(case.repetitions)])
    return found


def table(machine: Machine, found: dict[str, Spread]) -> str:
    """For people."""
    lines = [machine.line, "", f"{'':<40}{'CPU s':>24}{'released, wall s':>20}{'prototype, CPU s':>20}"]
    lines += [
        f"{case.name:<40}{found[case.name].text(3):>24}{case.stated_released_s:>20}{case.stated_prototype_s:>20}"
        for case in cases()
    ]
    return "\n".join([*lines, "", "median (range); the two columns to the right are stated, not measured here"])


def main() -> None:
    """Measure, print, write the record."""
    parser = argparse.ArgumentParser(description="how long the planner plans")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args()
    machine, found = this_machine(), measure()
    record = {
        "machine": machine.as_dict(),
        "cpu_s": {name: {"median": one.median, "least": one.least, "most": one.most} for name, one in found.items()},
    }
    tell(table(machine, found), record, [write_record(record, OUTPUT / "planner.json")], as_json=options.json)


if __name__ == "__main__":
    main()
