"""The fastest or cheapest strategy for a job that fits, compared with the others, or what is missing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schemas.launch import launch_lines
from schemas.layers import LayerProfile
from schemas.measured_runs import MeasuredRun
from schemas.plans import Alternative, Plan, PlanReply, PlanRequest, Strategy
from schemas.predictions import Objective
from schemas.reasons import quantity
from services.planner.core.candidates import Candidate, candidate
from services.planner.core.correction import digest_of, learned
from services.planner.core.explain import NAMES, Candidates, reasons
from services.planner.core.inputs import Inputs, inputs_of
from services.planner.core.profile import GIB, Infeasible, total
from services.planner.core.remedy import remedy

LEAST_SPREAD: Final = 0.05
"""Of a step's interval, below and above: no prediction is surer."""
_S_PER_HOUR: Final = 3_600.0
WORKER: Final = ("turnbuckle", "run", "trainer-worker", "plan.json", "model.py:build", "--data", "data.py:batches")
"""What each device runs; the names of files are the reader's to replace."""


def plan(request: PlanRequest, profiles: Sequence[LayerProfile], runs: Sequence[MeasuredRun] = ()) -> PlanReply:
    """The best plan by the requested strategies, or why there is none; beside it, what all the strategies would give.

    Args:
        request: what is to be planned.
        profiles: of the model, one or more per kind of device.
        runs: earlier ones of plans, which correct the step and its interval.

    Raises:
        MissingProfileError: a kind of device has no profile.
        UnusableInputError: profiles or cluster cannot be planned with.
    """
    inputs = inputs_of(request, profiles)
    found: Candidates = {strategy: candidate(inputs, strategy) for strategy in Strategy}
    fitting = [one for strategy in request.strategies if isinstance(one := found[strategy], Candidate)]
    alternatives = [_alternative(inputs, strategy, one) for strategy, one in found.items()]
    if not fitting:
        return _refused(inputs, found, alternatives)
    costs = [usd_per_step(inputs, one) for one in fitting]
    by_cost = request.objective is Objective.COST and all(costs)
    best = min(range(len(fitting)), key=lambda i: (costs[i] if by_cost else 0.0, fitting[i].median_ms))
    chosen = fitting[best]
    others = tuple(one for one in alternatives if one.strategy is not chosen.strategy)
    made = _plan(inputs, chosen, found).model_copy(update={"alternatives": others})
    return PlanReply(plan=learned(made, runs))


def _plan(inputs: Inputs, chosen: Candidate, found: Candidates) -> Plan:
    low_ms, step_ms, high_ms = chosen.step_ms
    low_ms, high_ms = min(low_ms, step_ms * (1 - LEAST_SPREAD)), max(high_ms, step_ms * (1 + LEAST_SPREAD))
    used = tuple(profile.profile for profile in inputs.profiles.values())
    return Plan(
        plan=digest(inputs),
        job=inputs.request.job,
        engine=chosen.engine,
        strategy=chosen.strategy,
        batch=inputs.request.batch,
        gather_dtype=inputs.request.gather_dtype,
        microbatch=chosen.microbatch,
        turns=chosen.turns,
        devices=chosen.devices,
        stages=chosen.stages,
        step_us=step_ms * 1_000,
        step_low_us=low_ms * 1_000,
        step_high_us=high_ms * 1_000,
        reasons=reasons(inputs, chosen, found),
        launch=launch_lines(inputs.request.cluster, WORKER),
        profiles=used,
        usd_per_step=usd_per_step(inputs, chosen),
    )


def digest(inputs: Inputs) -> str:
    """Of the request and the profiles."""
    parts = [inputs.request.model_dump_json(), *(profile.model_dump_json() for profile in inputs.profiles.values())]
    return digest_of(parts)


def usd_per_step(inputs: Inputs, one: Candidate) -> float:
    """Of the devices that it uses; 0: a price is not known."""
    devices = inputs.request.cluster.devices
    prices = [devices[row.rank].usd_per_hour for row in one.devices if row.samples or row.state_share]
    return total(prices) * one.median_ms / 1_000 / _S_PER_HOUR if all(prices) else 0.0


def _alternative(inputs: Inputs, strategy: Strategy, one: Candidate | Infeasible) -> Alternative:
    if isinstance(one, Infeasible):
        return Alternative(strategy=strategy, refused=one.reason)
    return Alternative(strategy=strategy, step_us=one.median_ms * 1_000, usd_per_step=usd_per_step(inputs, one))


def _refused(inputs: Inputs, found: Candidates, alternatives: Sequence[Alternative]) -> PlanReply:
    """What is missing by the strategy that comes closest."""
    requested = [(found[strategy], strategy) for strategy in inputs.request.strategies]
    failed = [(one, strategy) for one, strategy in requested if isinstance(one, Infeasible)]
    short = [(one, strategy) for one, strategy in failed if one.missing_gib > 0] or failed
    closest, strategy = min(short, key=lambda pair: pair[0].missing_gib)
    sentence = f"no plan fits; {NAMES[strategy]} comes closest: {closest.reason}"
    if closest.missing_gib > 0:
        sentence += f"; {quantity('memory', closest.missing_gib * GIB)} are missing"
    return PlanReply(
        refused=sentence,
        missing_bytes=int(closest.missing_gib * GIB),
        remedy=remedy(inputs),
        alternatives=tuple(alternatives),
    )
