"""Random jobs on random devices: every plan that is made fits. ``make fuzz-plans ARGS="--seed 7 --count 1000"``.

Each problem has its number and the seed only: the same ones make it again. Of each, the division by every strategy is
held against the memory that it was planned with, which is added up anew here, and against batch and state.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from schemas.devices import Cluster, Device, LinkRate
from schemas.layers import Dtype, LayerClass, LayerProfile
from schemas.plans import PlanRequest, Strategy
from services.planner.core import cephalo, zorse
from services.planner.core.candidates import Candidate, candidate, needed_gib
from services.planner.core.inputs import Inputs, data_parallel, inputs_of, pipeline
from services.planner.core.profile import GIB, total
from tests.bench.machine import Machine, this_machine
from tests.bench.outcome import OUTPUT, say, tell, write_record

DEFAULT_COUNT: Final = 100_000
MIB: Final = 1 << 20
_KINDS: Final = ("l4", "p40", "cpu", "sandbox:0.5")
_GIB_WITHIN: Final = 1e-9
"""Rounding of sums; less than a byte at 1 GiB."""
_SHARES_WITHIN: Final = 1e-9
_MOST_SHOWN: Final = 20


@dataclass(slots=True)
class PlansReport:
    """What became of the problems."""

    seed: int
    problems: int = 0
    plans: int = 0
    """Problems with a division that fits: the others would be refused, with the reason."""
    divisions: Counter[Strategy] = field(default_factory=Counter)
    """That were found, and held against the memory."""
    exceeding: list[str] = field(default_factory=list)
    """A sentence for each that does not fit."""

    @property
    def text(self) -> str:
        """For people."""
        each = ", ".join(f"{strategy} {self.divisions[strategy]:,}" for strategy in Strategy)
        head = f"seed {self.seed}: {self.problems:,} problems, {self.plans:,} with a plan, {len(self.exceeding)} exceed"
        return "\n".join([head, f"divisions that fit: {each}", *self.exceeding[:_MOST_SHOWN]])

    @property
    def figures(self) -> dict[str, Any]:
        """As rows of a kept record."""
        found = sum(self.divisions.values())
        return {
            "plans-that-fit": {
                "what": "random jobs on random devices; those with a plan; divisions by all strategies; that exceed",
                "unit": "",
                "median": None,
                "min": None,
                "max": None,
                "shown": f"{self.problems:,}; {self.plans:,}; {found:,}; {len(self.exceeding):,}",
            }
        }


def random_request(random: Random) -> PlanRequest:
    """One to six devices of up to four kinds on up to three machines, a small model, a batch of up to 32."""
    kinds = random.sample(_KINDS, random.randint(1, len(_KINDS)))
    places = [machine for machine in "abc"[: random.randint(1, 3)] for _ in range(random.randint(1, 2))]
    devices = tuple(
        Device(rank=rank, kind=random.choice(kinds), machine=machine, memory_bytes=int(random.uniform(0.3, 6) * GIB))
        for rank, machine in enumerate(places)
    )
    rate = LinkRate(bytes_per_s=random.uniform(1e8, 2e10), latency_us=random.uniform(1, 2_000))
    shapes = [_shape(random) for _ in range(random.randint(1, 3))]
    order = tuple(index for index, _ in enumerate(shapes) for _ in range(random.randint(1, 8)))
    is_chain = random.random() < 0.8
    return PlanRequest(
        job="random",
        profiles=tuple(_profile(random, kind, shapes, order, is_chain=is_chain) for kind in kinds),
        cluster=Cluster(devices=devices, inside=rate, between=rate),
        batch=random.randint(1, 32),
        optimizer_bytes_per_parameter=random.choice((8.0, 12.0, 16.0)),
        gather_dtype=random.choice((Dtype.FLOAT32, Dtype.BFLOAT16)),
        max_microbatch=random.choice((1, 3, 65_536)),
        memory_share=random.uniform(0.4, 1),
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """Of a class of layers, the same on all kinds of devices."""

    parameters: int
    boundary_bytes: int
    saved_bytes: tuple[int, ...]


def _shape(random: Random) -> _Shape:
    saved, sizes = random.randint(0, 64) * MIB, random.randint(1, 5)
    return _Shape(
        random.randint(0, 20_000_000),
        random.randint(1, 4 * MIB),
        tuple(saved * size + random.randint(0, MIB) * size for size in range(1, sizes + 1)),
    )


def _profile(
    random: Random, kind: str, shapes: Sequence[_Shape], order: tuple[int, ...], *, is_chain: bool
) -> LayerProfile:
    sizes = min(len(shape.saved_bytes) for shape in shapes)
    classes = []
    for index, shape in enumerate(shapes):
        us, constant_us = random.uniform(100, 20_000), random.uniform(0, 1_000)
        times = tuple(us * size + constant_us for size in range(1, sizes + 1))
        classes.append(
            LayerClass(
                name=f"class-{index}",
                count=order.count(index),
                parameters=shape.parameters + 1,
                flat_bytes=4 * (shape.parameters + 1),
                forward_us=times,
                backward_us=tuple(2 * each for each in times),
                saved_bytes=shape.saved_bytes[:sizes],
                boundary_bytes=shape.boundary_bytes,
                fsdp2_us=random.uniform(0, 20_000),
            )
        )
    return LayerProfile(
        profile=f"{kind}-1",
        model="random",
        task="random",
        kind=kind,
        classes=tuple(classes),
        order=order,
        chain=is_chain,
        reserved_bytes=random.randint(0, 300) * MIB,
        accumulation_us=random.uniform(0, 500),
        measured_ns=1,
    )


def try_one(report: PlansReport, number: int) -> None:
    """Divide one problem by each strategy, and hold what comes out against memory, batch and state."""
    asked = random_request(Random(f"{report.seed}-{number}"))
    inputs, fitting = inputs_of(asked, asked.profiles), 0
    for strategy in Strategy:
        needed = _needed_of_pipeline(inputs) if strategy is Strategy.PIPELINE else _needed(inputs, strategy)
        if needed is not None:
            fitting += 1
            report.divisions[strategy] += 1
            _hold(report, f"problem {number}, {strategy}", asked, needed)
    report.problems += 1
    report.plans += fitting > 0


def _hold(report: PlansReport, which: str, asked: PlanRequest, needed: Sequence[float]) -> None:
    for device, gib in zip(asked.cluster.devices, needed, strict=True):
        allowed = asked.memory_share * device.memory_bytes / GIB
        if gib > allowed + _GIB_WITHIN:
            report.exceeding.append(f"{which}: rank {device.rank} needs {gib:.6f} of {allowed:.6f} GiB")


def _needed(inputs: Inputs, strategy: Strategy) -> list[float] | None:
    """GiB of each device by the engine that carries the division out; None: there is none that fits."""
    found = candidate(inputs, strategy)
    if not isinstance(found, Candidate):
        return None
    problem, rows = data_parallel(inputs, engine=found.engine), found.devices
    assert problem is not None
    assert sum(row.samples for row in rows) == inputs.request.batch
    assert abs(total(row.state_share for row in rows) - 1) <= _SHARES_WITHIN
    split = cephalo.Split(tuple(row.samples for row in rows), tuple(row.microbatches for row in rows))
    return needed_gib(problem, split, [row.state_share for row in rows])


def _needed_of_pipeline(inputs: Inputs) -> list[float] | None:
    problem = pipeline(inputs)
    if not inputs.model.chain or not isinstance(found := zorse.plan(problem), zorse.Plan):
        return None
    assert all(sum(group.counts) * found.microbatch == problem.batch for group in found.groups)
    needed = zorse.device_gib(problem, found.groups, found.stages, found.microbatch)
    return [needed.get(device.rank, 0.0) for device in problem.devices]


def fuzz(seed: int, count: int, *, told: Callable[[PlansReport], None] = lambda _: None) -> PlansReport:
    """Plan so many problems; `told` hears of the progress now and then."""
    report = PlansReport(seed)
    for number in range(count):
        try_one(report, number)
        if report.problems % 1_000 == 0:
            told(report)
    return report


def main() -> int:
    """1 where a plan does not fit."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.random_plans", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="default: another one each time")
    parser.add_argument("--count", type=int, default=DEFAULT_COUNT, help="problems (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the text")
    given = parser.parse_args()
    machine: Machine = this_machine()
    report = fuzz(given.seed, given.count, told=lambda now: say(f"{now.problems}: {len(now.exceeding)} exceed"))
    record = {"machine": machine.as_dict(), "seed": report.seed, "figures": report.figures}
    tell(report.text, record, [write_record(record, OUTPUT / "random-plans.json")], as_json=given.json)
    return 1 if report.exceeding else 0


if __name__ == "__main__":
    sys.exit(main())
