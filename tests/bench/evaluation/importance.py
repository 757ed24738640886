"""Which features a model leans on: how much worse it gets when they are shuffled (thesis 4.5.2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.core.encoder import CATEGORY_MARK, CONFIGURATION, ELSEWHERE, LAYERS, SERIES, SERIES_CHANNELS
from services.advisor.core.table import Table
from services.advisor.models.baselines.regressor_model import Fitted
from tests.bench.evaluation import metrics

_ALSO_IN: Final = {
    "config.workers": "workers",
    "config.price_usd_per_hour": "price_usd_per_hour",
    "local.time_s": "reference_time_s",
}
"""Features that a table holds as arrays, too."""


def families(table: Table) -> Mapping[str, IntArray]:
    """Return columns that mean one thing together: the categories of a text, the summaries of a series, all layers."""
    found: dict[str, list[int]] = {}
    for at, name in enumerate(table.feature_names):
        family = name.partition(CATEGORY_MARK)[0]
        if name.startswith(SERIES):
            family = family.rpartition(".")[0]
        elif name.startswith(LAYERS):
            family = LAYERS.rstrip(".")
        found.setdefault(family, []).append(at)
    return {name: np.array(columns, dtype=np.int64) for name, columns in sorted(found.items())}


def shuffled(table: Table, family: str, columns: IntArray, random: np.random.Generator) -> Table:
    """Return the table with one family's values dealt out among the rows anew (a series': among the tasks).

    Whatever else of a row tells the same goes with them: a configuration that was changed is no known one by its name.
    """
    order = random.permutation(len(table))
    features = table.features.copy()
    features[:, columns] = features[order][:, columns]
    changed = replace(table, features=features)
    if family in _ALSO_IN:
        name = _ALSO_IN[family]
        changed = replace(changed, **{name: getattr(table, name)[order]})
    if family.startswith(CONFIGURATION):
        kept = ((features == table.features) | np.isnan(features) & np.isnan(table.features)).all(axis=1)
        changed = replace(changed, configuration_key=np.where(kept, table.configuration_key, ELSEWHERE))
    channel = family.removeprefix(SERIES)
    if channel in SERIES_CHANNELS and table.task_series:
        changed = replace(changed, task_series=_dealt_out(table.task_series, SERIES_CHANNELS.index(channel), random))
    return changed


def _dealt_out(series: Mapping[str, FloatArray], channel: int, random: np.random.Generator) -> Mapping[str, FloatArray]:
    tasks = sorted(series)
    result = {}
    for task, other in zip(tasks, random.permutation(tasks), strict=True):
        values = series[task].copy()
        values[channel] = series[str(other)][channel]
        result[task] = values
    return result


def permutation_importance(
    fitted: Fitted, questions: Table, actual: FloatArray, *, seed: int, repeats: int = 5
) -> dict[str, float]:
    """Return by how much the root mean squared error of the *logarithm* grows when a family is shuffled.

    Args:
        fitted: Predicts.
        questions: Rows that it was not trained on, without outcomes.
        actual: Their seconds or dollars.
        seed: Of the shuffling.
        repeats: Shuffles per family, averaged.
    """
    random = np.random.default_rng(seed)
    logs = np.log(actual)

    def error(table: Table) -> float:
        return metrics.rmse(logs, np.log(fitted.predict(table)))

    base = error(questions)
    found = {
        family: float(np.mean([error(shuffled(questions, family, columns, random)) for _ in range(repeats)])) - base
        for family, columns in families(questions).items()
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))
