"""Answers: predicted time and cost of a question's configurations, filtered, ranked and explained."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from schemas.jobs import Configuration
from schemas.predictions import (
    AdviceExplainReply,
    AdviceExplainRequest,
    ConfigurationPrediction,
    Contribution,
    Estimate,
    ModelName,
    Neighbour,
    Objective,
    PredictReply,
    PredictRequest,
    Proposal,
    Question,
    RankReply,
    RankRequest,
)
from services.advisor.core.accelerator_times import LEAST_APPLICATIONS
from services.advisor.core.accelerator_times import Estimate as AcceleratorEstimate
from services.advisor.core.arrays import BoolArray, FloatArray, IntArray
from services.advisor.core.catalogue import Listing
from services.advisor.core.encoder import configuration_key, machine_column
from services.advisor.core.local_runs import NO_ACCELERATOR_RUN
from services.advisor.core.measured_links import missing_link
from services.advisor.core.memory_fit import memory_fit
from services.advisor.core.questions import BadQuestionError, CompletedQuestion, MeasuredTasks, complete, question_table
from services.advisor.core.spot import SpotTerms, expected_duration_s
from services.advisor.core.table import SECONDS_PER_HOUR, Table
from services.advisor.core.trained_model import Predictions, TrainedModel

FITS: Final = 0.5
"""Configurations with a smaller probability of running are rejected."""
MEDIAN: Final = 1
_REASONS: Final = 3
_EXPLAINED: Final = 25
"""Rows up to which a prediction has reasons; for others see `advisor.explain`."""
_NEIGHBOURS: Final = 3
OVER_BUDGET, TOO_LATE, NO_PRICE = "over budget", "too late", "no price"
INTERRUPTED = "interrupted too often"
WILL_NOT_FIT, NOT_KNOWN = "will not fit", "not known"
MEASURED_LATER: Final = (
    "such machines were measured after this model was trained: it is trained again after some more records "
    "(TURNBUCKLE_ADVISOR__RETRAIN_AFTER), or at a request to cmd.advisor.train"
)


@dataclass(frozen=True, slots=True)
class ModelContext:
    """The trained model, prices, measured tasks and spot assumptions that a question is answered with."""

    trained: TrainedModel
    model: ModelName
    listing: Listing
    measured: MeasuredTasks
    spot: SpotTerms = field(default_factory=SpotTerms)


@dataclass(frozen=True, slots=True, eq=False)
class ScoredConfigurations:
    """A question's configurations with predicted time, cost and feasibility; arrays have one row per configuration."""

    question: CompletedQuestion
    table: Table
    predictions: Predictions
    cost_usd: FloatArray
    """Shape ``(rows, 3)``: low, median, high; NaN without a price."""
    spot_usd: FloatArray
    """As `cost_usd`, with the expected restarts; NaN without a spot price, or if the job would never end."""
    rank_time_s: FloatArray
    """Times to rank by, in the same shape: on spot machines with the restarts; NaN if the job would never end."""
    rank_usd: FloatArray
    """Costs to rank by; NaN without a price."""
    known: BoolArray
    fits: BoolArray
    front: BoolArray
    """On the Pareto front of time and cost among those that fit and are known."""
    first: BoolArray
    """The first occurrence of its configuration in the question."""
    laws: tuple[str, ...]
    """Per configuration, by what its time on an accelerator is known; empty: by the model."""


def score_configurations(question: Question, context: ModelContext, *, spot: bool = False) -> ScoredConfigurations:
    """Return a question's configurations with predicted time, cost and feasibility.

    Raises:
        BadQuestionError: it cannot be answered.
    """
    completed = complete(question, context.listing, context.measured)
    table = question_table(completed, context.trained.encoder)
    predictions = context.trained.predict(table)
    estimates = _on_accelerators(completed, context.measured)
    predictions = _with_estimates(predictions, estimates)
    unknown = _why_unknown(completed, predictions.unknown, context)
    laws = tuple("" if one is None else one.law for one in estimates)
    unknown = tuple("" if law else reason for law, reason in zip(laws, unknown, strict=True))
    # What was measured of intervals on left-out tasks says nothing where nothing is known.
    coverage = None if all(unknown) else predictions.coverage
    too_small, notes = _memory(completed)
    feasible = np.where(too_small, 0.0, predictions.feasible)
    predictions = replace(predictions, unknown=unknown, coverage=coverage, feasible=feasible)
    completed = replace(completed, warnings=(*completed.warnings, *notes))
    machines = table.workers[:, None]
    spot_price = np.array([one.spot_usd_per_hour if one else None for one in completed.prices], dtype=np.float64)
    machine_hours = predictions.cost_ratio[:, None] * machines / SECONDS_PER_HOUR
    cost = predictions.time_s * machine_hours * table.price_usd_per_hour[:, None]
    spot_time = expected_duration_s(predictions.time_s, machines, context.spot)
    spot_cost = spot_time * machine_hours * spot_price[:, None]
    time_s, usd = (spot_time, spot_cost) if spot else (predictions.time_s, cost)
    first = np.zeros(len(table), dtype=bool)
    first[np.unique(table.configuration_key, return_index=True)[1]] = True
    known = np.array([not reason for reason in predictions.unknown], dtype=bool)
    fits = predictions.feasible >= FITS
    front = pareto_front(np.where(known & fits & first, time_s[:, MEDIAN], np.nan), usd[:, MEDIAN])
    return ScoredConfigurations(
        completed, table, predictions, cost, spot_cost, time_s, usd, known, fits, front, first, laws
    )


def _on_accelerators(question: CompletedQuestion, measured: MeasuredTasks) -> list[AcceleratorEstimate | None]:
    """Return each configuration's time by other trainings on accelerators; None where the model answers.

    The model answers what was measured of the very configuration, what none of those laws reaches, and a local run
    without accelerators if enough tasks with such a run were measured on accelerators to learn from.
    """
    times, local = measured.on_accelerators, question.profile
    runs = times.runs_of(question.task, local)
    if not runs and local is not None and len(_linking_tasks(measured)) > LEAST_APPLICATIONS:
        return [None] * len(question.recorded)
    measured_here = {configuration_key(one.where) for one in runs}
    return [
        None if configuration_key(one) in measured_here else times.job(question.task, one, runs)
        for one in question.recorded
    ]


def _linking_tasks(measured: MeasuredTasks) -> list[str]:
    """Return the tasks that were measured on accelerators and have a local run."""
    return [task for task in measured.tasks_on_accelerators if task in measured.local_run]


def _with_estimates(predictions: Predictions, estimates: Sequence[AcceleratorEstimate | None]) -> Predictions:
    """Return predictions with the times of the estimates, of which the model's coverage says nothing."""
    time_s = predictions.time_s.copy()
    for row, one in enumerate(estimates):
        if one is not None:
            time_s[row] = np.exp(one.log + one.half_width * np.array([-1.0, 0.0, 1.0]))
    extrapolated = tuple(
        names if one is None else () for names, one in zip(predictions.extrapolated, estimates, strict=True)
    )
    coverage = predictions.coverage if all(one is None for one in estimates) else None
    return replace(predictions, time_s=time_s, extrapolated=extrapolated, coverage=coverage)


def _why_unknown(question: CompletedQuestion, by_model: Sequence[str], context: ModelContext) -> tuple[str, ...]:
    """Return, per configuration, why its time is not known; empty if it is known."""
    if question.why_unknown:
        return (question.why_unknown,) * len(by_model)
    measured = context.measured
    columns = frozenset(context.trained.encoder.feature_names)
    machines = measured.newest_of_machines()
    learned = [one for one in machines if machine_column(one) in columns]
    links: dict[tuple[object, ...], str] = {}
    for one in question.recorded:
        if (machine := _machine(one)) not in links:
            reason = missing_link(one, learned or machines)
            links[machine] = MEASURED_LATER if reason and not missing_link(one, machines) else reason
    reasons = [links[_machine(where)] or reason for where, reason in zip(question.recorded, by_model, strict=True)]
    short = [measured.on_accelerators.too_short(question.task, where) for where in question.recorded]
    reasons = [too_short if reason and too_short else reason for reason, too_short in zip(reasons, short, strict=True)]
    if _links_accelerators(question, measured):
        return tuple(reasons)
    return tuple(
        reason or (NO_ACCELERATOR_RUN if where.accelerator else "")
        for where, reason in zip(question.recorded, reasons, strict=True)
    )


def _links_accelerators(question: CompletedQuestion, measured: MeasuredTasks) -> bool:
    """Whether a local run without accelerators says anything of machines with them: if some task ran on both."""
    local, tasks = question.profile, measured.tasks_on_accelerators
    if local is None or local.configuration.accelerator or question.task.task in tasks or not tasks:
        return True
    return bool(_linking_tasks(measured))


def _memory(question: CompletedQuestion) -> tuple[BoolArray, tuple[str, ...]]:
    """Return which configurations cannot hold the training, shape ``(rows,)``, and notes on memory."""
    found = [memory_fit(question.task, one) for one in question.configurations]
    too_small = np.array([one.fits is False and not one.fits_sharded for one in found], dtype=bool)
    whole = [one.reason for one in found if one.fits is False and not one.fits_sharded]
    divided = [one.reason for one in found if one.fits is False and one.fits_sharded]
    notes = [f"{len(whole)} of {len(found)} configurations have too little memory: {whole[0]}"] if whole else []
    if divided:
        notes.append(
            f"{len(divided)} of {len(found)} configurations suffice only where the state is divided among the devices "
            f"(FSDP, ZeRO): {divided[0]}"
        )
    return too_small, tuple(notes)


def _machine(where: Configuration) -> tuple[object, ...]:
    return where.provider, where.instance_type, where.vcpu, where.accelerator


def predict(request: PredictRequest, context: ModelContext) -> PredictReply:
    """Return time and cost of each configuration, in the order given."""
    scored = score_configurations(request, context)
    count = len(scored.table)
    warnings = list(scored.question.warnings)
    reasons: list[tuple[str, ...]] = [()] * count
    if count <= _EXPLAINED:
        reasons = _reasons(scored, context, np.arange(count))
    else:
        warnings.append(f"reasons are left out beyond {_EXPLAINED} configurations: ask advisor.explain for one")
    return PredictReply(
        model=context.model,
        prices_as_of=scored.question.prices_as_of,
        level=context.trained.level,
        coverage=scored.predictions.coverage,
        predictions=tuple(_prediction(scored, row, reasons[row]) for row in range(count)),
        warnings=tuple(warnings + _common_warnings(scored)),
    )


def rank(request: RankRequest, context: ModelContext) -> RankReply:
    """Return the best configurations under the limits given."""
    scored = score_configurations(request, context, spot=request.spot)
    times_s = scored.rank_time_s[:, MEDIAN]
    values = scored.rank_usd[:, MEDIAN] if request.objective is Objective.COST else times_s
    rejected, chosen = _filtered(scored, request)
    order = chosen[np.argsort(values[chosen], kind="stable")]
    best = order[: request.top]
    near = _nearest(scored, request) if not len(best) else None
    front = np.flatnonzero(scored.front)
    front = front[np.argsort(times_s[front], kind="stable")]
    shown = np.unique(np.concatenate((best[:_EXPLAINED], front[:_EXPLAINED])))
    reasons = dict(zip(shown.tolist(), _reasons(scored, context, shown), strict=True))
    informative = scored.first & scored.fits & ~scored.known  # a run there makes it known
    informative[chosen] = True
    candidates = np.where(informative, values, np.nan)
    proposals, worth_measuring = _proposals(scored, context, candidates, request.proposals)
    warnings = [*scored.question.warnings, *_common_warnings(scored), *_risks(scored, request, best)]
    return RankReply(
        model=context.model,
        prices_as_of=scored.question.prices_as_of,
        level=context.trained.level,
        coverage=scored.predictions.coverage,
        objective=request.objective,
        considered=int(scored.first.sum()),
        ranked=tuple(_prediction(scored, row, reasons.get(row, ())) for row in best.tolist()),
        pareto=tuple(_prediction(scored, row, reasons.get(row, ())) for row in front.tolist()),
        nearest=_prediction(scored, near, ()) if near is not None else None,
        neighbours=context.trained.neighbours(scored.table, _NEIGHBOURS),
        proposals=proposals,
        worth_measuring=worth_measuring,
        rejected=dict(rejected),
        warnings=tuple(warnings),
    )


def explain(request: AdviceExplainRequest, context: ModelContext) -> AdviceExplainReply:
    """Return why one configuration is predicted as it is."""
    if len(request.configurations) != 1:
        raise BadQuestionError(f"exactly one configuration can be explained, not {len(request.configurations)}")
    scored = score_configurations(request, context)
    contributions = context.trained.contributions(scored.table, np.array([0]))[0]
    neighbours = context.trained.neighbours(scored.table, _NEIGHBOURS)
    prediction = _prediction(scored, 0, _reasons(scored, context, np.array([0]))[0])
    return AdviceExplainReply(
        model=context.model,
        prediction=prediction,
        contributions=contributions,
        neighbours=neighbours,
        summary=_summary(prediction, neighbours, context.trained.level),
    )


def best_first(reply: PredictReply | RankReply, count: int) -> tuple[ConfigurationPrediction, ...]:
    """Return the predictions to publish: a ranking's first, or the cheapest (else fastest) known ones."""
    if isinstance(reply, RankReply):
        return reply.ranked[:count]

    def place(one: ConfigurationPrediction) -> tuple[bool, float, float]:
        cost = one.cost_usd.median if one.cost_usd is not None else float("inf")
        return not one.known or one.feasible < FITS, cost, one.time_s.median

    return tuple(sorted(reply.predictions, key=place)[:count])


# -- filtering ---------------------------------------------------------------------------------------------------


def _filtered(scored: ScoredConfigurations, request: RankRequest) -> tuple[Counter[str], IntArray]:
    """Return the number of rejected rows by reason (the first that applies), and the remaining rows."""
    times, costs = scored.rank_time_s[:, MEDIAN], scored.rank_usd[:, MEDIAN]
    wants_price = request.objective is Objective.COST or request.budget_usd is not None or request.spot
    left = scored.first.copy()
    rejected: Counter[str] = Counter()
    tests: tuple[tuple[str, BoolArray], ...] = (
        (WILL_NOT_FIT, ~scored.fits),
        (NOT_KNOWN, ~scored.known),
        (INTERRUPTED, ~np.isfinite(times)),
        (NO_PRICE, ~np.isfinite(costs) & wants_price),
        (OVER_BUDGET, costs > (request.budget_usd or math.inf)),
        (TOO_LATE, times > (request.deadline_s or math.inf)),
    )
    for reason, out in tests:
        if count := int((left & out).sum()):
            rejected[reason] = count
        left &= ~out
    return rejected, np.flatnonzero(left)


def _nearest(scored: ScoredConfigurations, request: RankRequest) -> int | None:
    """The row that exceeds its limits by the smallest factor; None if rows were not rejected by limits."""
    cost, time_s = scored.rank_usd[:, MEDIAN], scored.rank_time_s[:, MEDIAN]
    over = np.fmax(cost / (request.budget_usd or math.inf), time_s / (request.deadline_s or math.inf))
    candidates = scored.first & scored.known & scored.fits & np.isfinite(over) & (over > 1)
    return int(np.argmin(np.where(candidates, over, np.inf))) if candidates.any() else None


def _proposals(
    scored: ScoredConfigurations, context: ModelContext, candidates: FloatArray, count: int
) -> tuple[tuple[Proposal, ...], tuple[Configuration, ...]]:
    """Return runs worth making next: those whose time is known, and those that it is not known of, without figures."""
    if not count or not np.isfinite(candidates).any():
        return (), ()
    found = context.trained.propose(scored.table, scored.predictions, candidates, count)
    asked = scored.question.configurations
    proposals = tuple(
        Proposal(
            configuration=asked[one.row],
            time_s=_estimate(scored.predictions.time_s[one.row]),
            cost_usd=_estimate_or_none(scored.cost_usd[one.row]),
            reason=one.reason,
        )
        for one in found
        if scored.known[one.row]
    )
    return proposals, tuple(asked[one.row] for one in found if not scored.known[one.row])


# -- texts and messages ------------------------------------------------------------------------------------------


def _reasons(scored: ScoredConfigurations, context: ModelContext, rows: IntArray) -> list[tuple[str, ...]]:
    found = context.trained.contributions(scored.table, rows)
    return [
        (scored.laws[row],) if scored.laws[row] else tuple(_reason(one) for one in each[:_REASONS])
        for row, each in zip(rows.tolist(), found, strict=True)
    ]


def _reason(one: Contribution) -> str:
    how = f"{one.factor:.2f} x the time" if one.factor < 10 else f"{one.factor:.3g} x the time"
    return f"{one.feature} {one.value}: {how}"


def _prediction(scored: ScoredConfigurations, row: int, reasons: tuple[str, ...]) -> ConfigurationPrediction:
    predictions = scored.predictions
    why = predictions.unknown[row]
    return ConfigurationPrediction(
        configuration=scored.question.configurations[row],
        time_s=_estimate(predictions.time_s[row]),
        cost_usd=_estimate_or_none(scored.cost_usd[row]),
        spot_cost_usd=_estimate_or_none(scored.spot_usd[row]),
        feasible=float(np.clip(predictions.feasible[row], 0.0, 1.0)),
        known=not why,
        why_unknown=why,
        extrapolated=predictions.extrapolated[row],
        reasons=reasons,
        pareto=bool(scored.front[row]),
    )


def _estimate(ends: FloatArray) -> Estimate:
    low, median, high = (float(one) for one in ends)
    return Estimate(median=median, low=low, high=high)


def _estimate_or_none(ends: FloatArray) -> Estimate | None:
    return _estimate(ends) if bool(np.isfinite(ends).all()) else None


def _common_warnings(scored: ScoredConfigurations) -> list[str]:
    predictions, count = scored.predictions, len(scored.table)
    by_law = Counter(law for law in scored.laws if law)
    warnings = [f"{found} of {count} configurations are known {law}" for law, found in by_law.most_common()]
    if count and (outside := sum(bool(one) for one in predictions.extrapolated)):
        first = next(one[0] for one in predictions.extrapolated if one)
        warnings.append(f"{outside} of {count} configurations lie outside of what was measured, such as by {first}")
    if count and all(predictions.unknown):
        warnings.append(f"not known: {_most_common(predictions.unknown)}")
    return warnings


def _most_common(reasons: Sequence[str]) -> str:
    return Counter(reasons).most_common(1)[0][0]


def _risks(scored: ScoredConfigurations, request: RankRequest, best: IntArray) -> list[str]:
    """Limits that the first choice keeps at its median, but not at its upper end."""
    if not len(best):
        return []
    row, risks = int(best[0]), []
    cost, time_s = scored.rank_usd[row, -1], scored.rank_time_s[row, -1]
    if cost > (request.budget_usd or math.inf):
        risks.append(f"the first choice may cost up to ${cost:.2f}, more than the budget")
    if time_s > (request.deadline_s or math.inf):
        risks.append(f"the first choice may take up to {time_s / SECONDS_PER_HOUR:.2f} h, longer than the deadline")
    return risks


def _summary(prediction: ConfigurationPrediction, neighbours: tuple[Neighbour, ...], level: float) -> str:
    time_s, cost = prediction.time_s, prediction.cost_usd
    estimate = f"{time_s.median:.4g} s ({time_s.low:.4g} to {time_s.high:.4g} s with {level:.0%})" + (
        f", ${cost.median:.4g} (${cost.low:.4g} to ${cost.high:.4g})" if cost is not None else ", no price known"
    )
    parts = [estimate if prediction.known else f"not known: {prediction.why_unknown}"]
    if prediction.reasons:
        parts.append("strongest: " + "; ".join(prediction.reasons))
    if neighbours:
        parts.append(f"nearest known task: {neighbours[0].task} (distance {neighbours[0].distance:.2f})")
    if prediction.feasible < FITS:
        parts.append(f"it will probably not run (probability {prediction.feasible:.0%})")
    return ". ".join(parts)


def pareto_front(time_s: FloatArray, cost_usd: FloatArray) -> BoolArray:
    """Return which rows no other row dominates: faster at no higher cost, or cheaper in no longer time.

    Rows with NaN in either are never on the front. Equal rows are on it together.
    """
    front = np.zeros(len(time_s), dtype=bool)
    usable = np.flatnonzero(np.isfinite(time_s) & np.isfinite(cost_usd))
    order = usable[np.lexsort((cost_usd[usable], time_s[usable]))]
    cheapest, at_s = np.inf, -np.inf
    for row in order:
        if cost_usd[row] < cheapest or (cost_usd[row] == cheapest and time_s[row] == at_s):
            front[row] = True
            cheapest, at_s = cost_usd[row], time_s[row]
    return front
