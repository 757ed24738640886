"""Every number of stages and replicas that fits equal sandboxes, each by its best plan, predicted and measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from schemas.layers import LayerProfile
from schemas.plans import Plan, PlanRequest
from services._jobs.sandbox.sandbox import Sandboxes
from services.planner.cluster_file import read_cluster
from services.planner.core import hybrid
from services.planner.core.inputs import inputs_of, stages_and_replicas
from tests.bench.elastic.cases import BOX, HYBRID_BATCH, HYBRID_MODEL, Extent
from tests.bench.outcome import say
from tests.bench.unequal import link, product
from tests.bench.unequal.cases import MEMORY_SHARE
from tests.bench.unequal.ranks import Ranks
from tests.support.trainer_plans import pipeline_plan, plan_of

STEPS_OF_A_TURN = 2


@dataclass(frozen=True, slots=True)
class Measured:
    """One number of stages and replicas."""

    plan: hybrid.Plan
    took_us: tuple[float, ...]
    """Median step of each turn."""

    @property
    def name(self) -> str:
        """Stages and replicas."""
        return f"{self.plan.layout.stages} x {self.plan.layout.replicas}"

    @property
    def median_us(self) -> float:
        """Of a step."""
        return statistics.median(self.took_us)

    @property
    def device_us(self) -> float:
        """Of a step, by all devices: what the samples of a step cost."""
        return self.median_us * self.plan.devices

    @property
    def predicted_device_us(self) -> float:
        """By the plan."""
        return self.plan.step_ms * 1_000 * self.plan.devices


def problem_of(profile: LayerProfile, devices: int, between: link.Connection, directory: Path) -> hybrid.Problem:
    """As `turnbuckle plan` would have it for so many sandboxes."""
    cluster = read_cluster(product.write_cluster((BOX,) * devices, between, directory / "cluster.yaml"))
    request = PlanRequest(
        job="hybrid", profiles=(profile,), cluster=cluster, batch=HYBRID_BATCH, memory_share=MEMORY_SHARE
    )
    return stages_and_replicas(inputs_of(request, request.profiles))


def best_of_each(problem: hybrid.Problem) -> list[hybrid.Plan]:
    """Of each number of stages and replicas that fits, the plan with the shortest step."""
    best: dict[tuple[int, int], hybrid.Plan] = {}
    for layout in hybrid.layouts(problem):
        for division in hybrid.divisions(problem, layout):
            plan = hybrid.Plan(layout, division.last_layers, hybrid.step_ms(problem, layout, division))
            key = layout.stages, layout.replicas
            if key not in best or plan.step_ms < best[key].step_ms:
                best[key] = plan
    return [best[key] for key in sorted(best)]


def carried_out(plan: hybrid.Plan, problem: hybrid.Problem) -> Plan:
    """For the trainer: replicas of a stage are a group, which holds the stage's state together."""
    size, stages, replicas = plan.layout
    count = problem.batch // (replicas * size)
    if stages == 1:
        return plan_of([count * size] * replicas, [count] * replicas, [1] * replicas)
    groups = [tuple(range(stage * replicas, (stage + 1) * replicas)) for stage in range(stages)]
    bounds = list(pairwise((0, *plan.last_layers)))
    parameters = [0, *accumulate(layer.parameters for layer in problem.layers)]
    shares = [float(parameters[last] - parameters[first]) for first, last in bounds for _ in range(replicas)]
    layers = [(stage, last - first) for stage, (first, last) in enumerate(bounds)]
    return pipeline_plan(groups, layers, [count] * (stages * replicas), shares, size)


def measure(extent: Extent, directory: Path) -> list[Measured]:
    """All of them, in turns of whole steps: one computes, the others are stopped."""
    [file] = product.measure_layers(HYBRID_MODEL, {BOX.cpu_cores: extent.profiled}, directory)
    profile = LayerProfile.model_validate_json(file.read_text(encoding="utf-8"))
    between = link.measured((BOX,) * 2, directory)
    say(f"{between.bits_per_s / 1e9:.2f} Gbit/s between sandboxes")
    problem = problem_of(profile, extent.devices, between, directory)
    plans = best_of_each(problem)
    with Sandboxes() as where:
        started = [_begun(where, plan, problem, directory) for plan in plans]
        took_us: list[list[float]] = [[] for _ in plans]
        for turn in range(extent.turns + 1):
            for ranks, medians in zip(started, took_us, strict=True):
                whole = [step.step_us for step in ranks.turn(STEPS_OF_A_TURN)]
                if turn:  # the first with a quota warms up
                    medians.append(statistics.median(whole))
    return [Measured(plan, tuple(medians)) for plan, medians in zip(plans, took_us, strict=True)]


def _begun(where: Sandboxes, plan: hybrid.Plan, problem: hybrid.Problem, directory: Path) -> Ranks:
    """Its ranks, stopped after their first steps."""
    name = f"s{plan.layout.stages}r{plan.layout.replicas}"
    say(f"{name}: micro-batches of {plan.layout.microbatch}, layers up to {plan.last_layers}, {plan.step_ms:.0f} ms")
    place = directory / name
    place.mkdir()
    (place / "plan.json").write_text(carried_out(plan, problem).model_dump_json(), encoding="utf-8")
    ranks = Ranks.start(where, name, (BOX,) * plan.devices, HYBRID_MODEL, place)
    ranks.begin()
    ranks.limit_cpu()
    ranks.pause()
    return ranks


def chosen(measured: Sequence[Measured]) -> Measured:
    """By the rule of `hybrid.plan`: the least time of devices for a sample, as predicted."""
    return min(measured, key=lambda one: (one.predicted_device_us, one.plan.step_ms, one.plan.layout.stages))


def fastest(measured: Sequence[Measured]) -> Measured:
    """The shortest step, as predicted."""
    return min(measured, key=lambda one: one.plan.step_ms)
