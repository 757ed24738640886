"""From a question to an answer: predictions of time and cost, what may be chosen, what is best, and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

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
from services.advisor.core.advising import Adviser, Outlook
from services.advisor.core.arrays import BoolArray, FloatArray, IntArray
from services.advisor.core.catalogue import Listing
from services.advisor.core.pareto import pareto_front
from services.advisor.core.questions import Asked, BadQuestionError, Measured, complete, question_table
from services.advisor.core.spot import SpotTerms, expected_duration_s
from services.advisor.core.table import SECONDS_PER_HOUR, Table

FITS: Final = 0.5
"""A configuration that runs with a smaller probability is left out."""
MEDIAN: Final = 1
_REASONS: Final = 3
_EXPLAINED: Final = 25
"""Beyond so many rows reasons are left out of a prediction: `advisor.explain` gives them."""
_NEIGHBOURS: Final = 3
OVER_BUDGET, TOO_LATE, NO_PRICE = "over budget", "too late", "no price"
INTERRUPTED = "interrupted too often"
WILL_NOT_FIT, NOT_KNOWN = "will not fit", "not known"


@dataclass(frozen=True, slots=True)
class Advice:
    """What answers are made from."""

    adviser: Adviser
    model: ModelName
    listing: Listing
    measured: Measured
    spot: SpotTerms = field(default_factory=SpotTerms)


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A question's configurations with all figures; arrays have one row per configuration."""

    asked: Asked
    table: Table
    outlook: Outlook
    cost_usd: FloatArray
    """Shape ``(rows, 3)``: low, median, high; NaN without a price."""
    spot_usd: FloatArray
    """As `cost_usd`, with the expected restarts; NaN without a spot price, and where the job would not end."""
    rank_time_s: FloatArray
    """What a ranking goes by, in the same shape: on spot machines with the restarts; NaN where it would not end."""
    rank_usd: FloatArray
    """Likewise; NaN without a price."""
    known: BoolArray
    fits: BoolArray
    front: BoolArray
    """Not beaten in both time and cost by another that fits and is known."""
    first: BoolArray
    """Not asked about before in the same question."""


def judge(question: Question, advice: Advice, *, spot: bool = False) -> Judged:
    """Return all figures of a question's configurations.

    Raises:
        BadQuestionError: it cannot be answered.
    """
    asked = complete(question, advice.listing, advice.measured)
    table = question_table(asked, advice.adviser.encoder)
    outlook = advice.adviser.outlook(table)
    if asked.why_unknown:
        outlook = replace(outlook, unknown=(asked.why_unknown,) * len(table))
    machines = table.workers[:, None]
    spot_price = np.array([one.spot_usd_per_hour if one else None for one in asked.prices], dtype=np.float64)
    machine_hours = outlook.cost_ratio[:, None] * machines / SECONDS_PER_HOUR
    cost = outlook.time_s * machine_hours * table.price_usd_per_hour[:, None]
    spot_time = expected_duration_s(outlook.time_s, machines, advice.spot)
    spot_cost = spot_time * machine_hours * spot_price[:, None]
    time_s, usd = (spot_time, spot_cost) if spot else (outlook.time_s, cost)
    first = np.zeros(len(table), dtype=bool)
    first[np.unique(table.configuration_key, return_index=True)[1]] = True
    known = np.array([not reason for reason in outlook.unknown], dtype=bool)
    fits = outlook.feasible >= FITS
    front = pareto_front(np.where(known & fits & first, time_s[:, MEDIAN], np.nan), usd[:, MEDIAN])
    return Judged(asked, table, outlook, cost, spot_cost, time_s, usd, known, fits, front, first)


def predict(request: PredictRequest, advice: Advice) -> PredictReply:
    """Return time and cost of each configuration, in the order given."""
    judged = judge(request, advice)
    count = len(judged.table)
    warnings = list(judged.asked.warnings)
    reasons: list[tuple[str, ...]] = [()] * count
    if count <= _EXPLAINED:
        reasons = _reasons(judged, advice, np.arange(count))
    else:
        warnings.append(f"reasons are left out beyond {_EXPLAINED} configurations: ask advisor.explain for one")
    return PredictReply(
        model=advice.model,
        prices_as_of=judged.asked.prices_as_of,
        level=advice.adviser.level,
        coverage=judged.outlook.coverage,
        predictions=tuple(_prediction(judged, row, reasons[row]) for row in range(count)),
        warnings=tuple(warnings + _common_warnings(judged)),
    )


def rank(request: RankRequest, advice: Advice) -> RankReply:
    """Return the best configurations under the limits given."""
    judged = judge(request, advice, spot=request.spot)
    times_s = judged.rank_time_s[:, MEDIAN]
    values = judged.rank_usd[:, MEDIAN] if request.objective is Objective.COST else times_s
    rejected, chosen = _filtered(judged, request)
    order = chosen[np.argsort(values[chosen], kind="stable")]
    best = order[: request.top]
    near = _nearest(judged, request) if not len(best) else None
    front = np.flatnonzero(judged.front)
    front = front[np.argsort(times_s[front], kind="stable")]
    shown = np.unique(np.concatenate((best[:_EXPLAINED], front[:_EXPLAINED])))
    reasons = dict(zip(shown.tolist(), _reasons(judged, advice, shown), strict=True))
    would_tell = judged.first & judged.fits & ~judged.known  # a run there would
    would_tell[chosen] = True
    may = np.where(would_tell, values, np.nan)
    warnings = [*judged.asked.warnings, *_common_warnings(judged), *_risks(judged, request, best)]
    return RankReply(
        model=advice.model,
        prices_as_of=judged.asked.prices_as_of,
        level=advice.adviser.level,
        coverage=judged.outlook.coverage,
        objective=request.objective,
        considered=int(judged.first.sum()),
        ranked=tuple(_prediction(judged, row, reasons.get(row, ())) for row in best.tolist()),
        pareto=tuple(_prediction(judged, row, reasons.get(row, ())) for row in front.tolist()),
        nearest=_prediction(judged, near, ()) if near is not None else None,
        neighbours=advice.adviser.neighbours(judged.table, _NEIGHBOURS),
        proposals=_proposals(judged, advice, may, request.proposals),
        rejected=dict(rejected),
        warnings=tuple(warnings),
    )


def explain(request: AdviceExplainRequest, advice: Advice) -> AdviceExplainReply:
    """Return why one configuration is predicted as it is."""
    if len(request.configurations) != 1:
        raise BadQuestionError(f"exactly one configuration can be explained, not {len(request.configurations)}")
    judged = judge(request, advice)
    contributions = advice.adviser.contributions(judged.table, np.array([0]))[0]
    neighbours = advice.adviser.neighbours(judged.table, _NEIGHBOURS)
    prediction = _prediction(judged, 0, tuple(_reason(one) for one in contributions[:_REASONS]))
    return AdviceExplainReply(
        model=advice.model,
        prediction=prediction,
        contributions=contributions,
        neighbours=neighbours,
        summary=_summary(prediction, neighbours, advice.adviser.level),
    )


def best_first(reply: PredictReply | RankReply, count: int) -> tuple[ConfigurationPrediction, ...]:
    """Return what a told prediction keeps: a ranking's first, or the cheapest (else fastest) known ones."""
    if isinstance(reply, RankReply):
        return reply.ranked[:count]

    def place(one: ConfigurationPrediction) -> tuple[bool, float, float]:
        cost = one.cost_usd.median if one.cost_usd is not None else float("inf")
        return not one.known or one.feasible < FITS, cost, one.time_s.median

    return tuple(sorted(reply.predictions, key=place)[:count])


# -- choosing ----------------------------------------------------------------------------------------------------


def _filtered(judged: Judged, request: RankRequest) -> tuple[Counter[str], IntArray]:
    """Why rows are left out, each counted under the first reason that holds; and the rows that stay."""
    times, costs = judged.rank_time_s[:, MEDIAN], judged.rank_usd[:, MEDIAN]
    wants_price = request.objective is Objective.COST or request.budget_usd is not None or request.spot
    left = judged.first.copy()
    rejected: Counter[str] = Counter()
    tests: tuple[tuple[str, BoolArray], ...] = (
        (WILL_NOT_FIT, ~judged.fits),
        (NOT_KNOWN, ~judged.known),
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


def _nearest(judged: Judged, request: RankRequest) -> int | None:
    """The row that breaks its limits by the smallest factor; None where limits are not what leaves nothing."""
    cost, time_s = judged.rank_usd[:, MEDIAN], judged.rank_time_s[:, MEDIAN]
    over = np.fmax(cost / (request.budget_usd or math.inf), time_s / (request.deadline_s or math.inf))
    may = judged.first & judged.known & judged.fits & np.isfinite(over) & (over > 1)
    return int(np.argmin(np.where(may, over, np.inf))) if may.any() else None


def _proposals(judged: Judged, advice: Advice, values: FloatArray, count: int) -> tuple[Proposal, ...]:
    if not count or not np.isfinite(values).any():
        return ()
    found = advice.adviser.propose(judged.table, judged.outlook, values, count)
    return tuple(
        Proposal(
            configuration=judged.asked.configurations[one.row],
            time_s=_estimate(judged.outlook.time_s[one.row]),
            cost_usd=_estimate_or_none(judged.cost_usd[one.row]),
            reason=one.reason,
        )
        for one in found
    )


# -- words and messages ------------------------------------------------------------------------------------------


def _reasons(judged: Judged, advice: Advice, rows: IntArray) -> list[tuple[str, ...]]:
    told = advice.adviser.contributions(judged.table, rows)
    return [tuple(_reason(one) for one in each[:_REASONS]) for each in told]


def _reason(one: Contribution) -> str:
    how = f"{one.factor:.2f} x the time" if one.factor < 10 else f"{one.factor:.3g} x the time"
    return f"{one.feature} {one.value}: {how}"


def _prediction(judged: Judged, row: int, reasons: tuple[str, ...]) -> ConfigurationPrediction:
    outlook = judged.outlook
    why = outlook.unknown[row]
    return ConfigurationPrediction(
        configuration=judged.asked.configurations[row],
        time_s=_estimate(outlook.time_s[row]),
        cost_usd=_estimate_or_none(judged.cost_usd[row]),
        spot_cost_usd=_estimate_or_none(judged.spot_usd[row]),
        feasible=float(np.clip(outlook.feasible[row], 0.0, 1.0)),
        known=not why,
        why_unknown=why,
        extrapolated=outlook.extrapolated[row],
        reasons=reasons,
        pareto=bool(judged.front[row]),
    )


def _estimate(ends: FloatArray) -> Estimate:
    low, median, high = (float(one) for one in ends)
    return Estimate(median=median, low=low, high=high)


def _estimate_or_none(ends: FloatArray) -> Estimate | None:
    return _estimate(ends) if bool(np.isfinite(ends).all()) else None


def _common_warnings(judged: Judged) -> list[str]:
    outlook, count = judged.outlook, len(judged.table)
    warnings = []
    if count and (outside := sum(bool(one) for one in outlook.extrapolated)):
        first = next(one[0] for one in outlook.extrapolated if one)
        warnings.append(f"{outside} of {count} configurations lie outside of what was measured, such as by {first}")
    if count and all(outlook.unknown):
        warnings.append(f"not known: {_most_common(outlook.unknown)}")
    return warnings


def _most_common(reasons: Sequence[str]) -> str:
    return Counter(reasons).most_common(1)[0][0]


def _risks(judged: Judged, request: RankRequest, best: IntArray) -> list[str]:
    """Limits that the first choice keeps in the middle, but not for certain."""
    if not len(best):
        return []
    row, risks = int(best[0]), []
    cost, time_s = judged.rank_usd[row, -1], judged.rank_time_s[row, -1]
    if cost > (request.budget_usd or math.inf):
        risks.append(f"the first choice may cost up to ${cost:.2f}, more than the budget")
    if time_s > (request.deadline_s or math.inf):
        risks.append(f"the first choice may take up to {time_s / SECONDS_PER_HOUR:.2f} h, longer than the deadline")
    return risks


def _summary(prediction: ConfigurationPrediction, neighbours: tuple[Neighbour, ...], level: float) -> str:
    time_s, cost = prediction.time_s, prediction.cost_usd
    said = (
        f"{time_s.median:.4g} s ({time_s.low:.4g} to {time_s.high:.4g} s with {level:.0%})"
        + (f", ${cost.median:.4g} (${cost.low:.4g} to ${cost.high:.4g})" if cost is not None else ", no price known")
    )  # fmt: skip
    parts = [said if prediction.known else f"not known: {prediction.why_unknown}; a guess is {said}"]
    if prediction.reasons:
        parts.append("strongest: " + "; ".join(prediction.reasons))
    if neighbours:
        parts.append(f"nearest known task: {neighbours[0].task} (distance {neighbours[0].distance:.2f})")
    if prediction.feasible < FITS:
        parts.append(f"it will probably not run (probability {prediction.feasible:.0%})")
    return ". ".join(parts)
