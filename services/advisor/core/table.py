"""Job records as aligned arrays: training rows and questions of every model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np

from schemas.jobs import JobRecord, JobState
from schemas.predictions import Objective
from schemas.runs import RunProfile
from services.advisor.core.arrays import AnyArray, BoolArray, FloatArray, IntArray, TextArray
from services.advisor.core.encoder import Encoder, JobFeatures, configuration_key, series_of
from services.advisor.core.whole_job_duration import LocalRunKind, whole_job_duration

SECONDS_PER_HOUR: Final = 3600.0
_RAN: Final = frozenset({JobState.SUCCEEDED, JobState.TIMED_OUT})
WORK: Final = ("task.epochs", "task.samples_per_epoch", "task.steps")
"""Features that say how much a job trains: its duration is scaled by them, known task or not."""
_NOT_ROWS: Final = frozenset({"feature_names", "task_series", "task_layers", "local_run"})


@dataclass(frozen=True, eq=False)
class Table:
    """Jobs, one element or row of each array per job."""

    task: TextArray
    """The application; the group of leave-one-group-out."""
    job: TextArray
    configuration_key: TextArray
    """Machine, workers, batch and attributes: the identity of a configuration, independent of the task."""
    features: FloatArray
    """Shape ``(rows, features)``. NaN: unknown. Categories are one-hot columns."""
    feature_names: tuple[str, ...]
    """Prefixes ``task.``, ``config.``, ``local.``, ``series.``, by which models select families."""
    time_s: FloatArray
    """NaN if the job did not finish."""
    cost_usd: FloatArray
    """Billed, else derived from the price; NaN if neither is known."""
    price_usd_per_hour: FloatArray
    """Of one machine; NaN if unknown."""
    workers: IntArray
    """Machines."""
    censored: BoolArray
    """Stopped at a limit: `time_s` and `cost_usd` are lower bounds."""
    feasible: BoolArray
    """The job ran: neither out of memory nor failed."""
    contended: BoolArray
    """The workers' limits together exceeded the machine."""
    reference_time_s: FloatArray
    """Duration of the whole job where its local run (or reference) was made (`whole_job_duration`); NaN if unknown."""
    reference_variance: FloatArray
    """Of the logarithm of `reference_time_s` ; 0 where the local run measured the whole job."""
    reference_cut: BoolArray
    """`reference_time_s` is estimated from a local run that was stopped."""
    reference_least_s: FloatArray
    """How long a local run that was stopped lasted: a lower bound of the job; NaN of others."""
    is_reference: BoolArray
    """The local run's own configuration: its outcome is known in advance, so it is never scored."""
    task_series: Mapping[str, FloatArray] = field(default_factory=dict)
    """Per task, shape ``(8, 60)``: see `SERIES_CHANNELS`. A task without a local run's series is absent."""
    task_layers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Per task, the types of its layers in order; tasks without them are absent."""
    local_run: Table | None = None
    """Of a question whose local run was made elsewhere than those of the records: one row, its configuration. Its
    `reference_time_s` is what the whole job takes there, with `reference_variance`."""

    def __len__(self) -> int:
        return len(self.task)

    def select(self, rows: BoolArray | IntArray) -> Table:
        """Return the rows of a mask, or of indices in their order."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _row_names()})

    def value(self, objective: Objective) -> FloatArray:
        """Return seconds or dollars, shape ``(rows,)``."""
        return self.cost_usd if objective is Objective.COST else self.time_s

    def completed(self, objective: Objective) -> BoolArray:
        """Return which rows' value is known exactly."""
        values = self.value(objective)
        return np.asarray(self.feasible & ~self.censored & np.isfinite(values) & (values > 0))

    def without_outcomes(self) -> Table:
        """Return the rows without outcomes: what a model may see of rows that it is scored on."""
        unknown = np.full(len(self), np.nan)
        no, yes = np.zeros(len(self), dtype=bool), np.ones(len(self), dtype=bool)
        return replace(self, time_s=unknown, cost_usd=unknown, censored=no, feasible=yes)

    def without_repeats(self) -> Table:
        """Return one row per task, its work and configuration, in order of the first: geometric means of repeats.

        A row is censored if any repeat was stopped at a limit, and feasible if at least half of the repeats ran.
        """
        names = np.char.add(np.char.add(self.task, "\n"), self.configuration_key)
        _, named = np.unique(names, return_inverse=True)
        same = np.column_stack([named, *(np.nan_to_num(self.feature(one)) for one in WORK)])
        _, first, group = np.unique(same, axis=0, return_index=True, return_inverse=True)
        group = group.reshape(-1)
        if len(first) == len(self):
            return self
        order = np.argsort(first)
        rows = [np.flatnonzero(group == one) for one in order]
        kept = self.select(first[order].astype(np.int64))
        return replace(
            kept,
            time_s=np.array([self._mean(self.time_s, one) for one in rows]),
            cost_usd=np.array([self._mean(self.cost_usd, one) for one in rows]),
            censored=np.array([bool((self.censored & self.feasible)[one].any()) for one in rows]),
            feasible=np.array([float(self.feasible[one].mean()) >= 0.5 for one in rows]),
            contended=np.array([bool(self.contended[one].any()) for one in rows]),
            is_reference=np.array([bool(self.is_reference[one].any()) for one in rows]),
        )

    def columns(self, *prefixes: str) -> IntArray:
        """Return the indices of the features whose names begin with any of `prefixes`."""
        return np.array([at for at, name in enumerate(self.feature_names) if name.startswith(prefixes)], dtype=np.int64)

    def feature(self, name: str) -> FloatArray:
        """Return one feature's column; all NaN without such a feature."""
        if name not in self.feature_names:
            return np.full(len(self), np.nan)
        return np.asarray(self.features[:, self.feature_names.index(name)])

    def _mean(self, values: FloatArray, rows: IntArray) -> float:
        """Geometric mean of the feasible rows; NaN if none."""
        measured = values[rows[self.feasible[rows]]]
        measured = measured[np.isfinite(measured) & (measured > 0)]
        return float(np.exp(np.log(measured).mean())) if len(measured) else float("nan")


def _row_names() -> tuple[str, ...]:
    return tuple(one.name for one in fields(Table) if one.name not in _NOT_ROWS)


def concatenated(tables: Sequence[Table]) -> Table:
    """Return the rows of all tables, which have the same features.

    Raises:
        ValueError: The features differ, or there is no table.
    """
    if not tables or any(one.feature_names != tables[0].feature_names for one in tables):
        raise ValueError("tables of different features cannot be joined")
    series = {task: values for one in reversed(tables) for task, values in one.task_series.items()}
    layers = {task: types for one in reversed(tables) for task, types in one.task_layers.items()}
    rows: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in tables]) for name in _row_names()}
    return replace(tables[0], task_series=series, task_layers=layers, **rows)


def training_rows(table: Table, objective: Objective) -> Table:
    """Return the rows whose value is known exactly.

    Raises:
        ValueError: There is none.
    """
    rows = table.select(table.completed(objective))
    if not len(rows):
        raise ValueError(f"no job with a known {objective.value} to learn from")
    return rows


def build(
    records: Sequence[JobRecord], profiles: Mapping[str, RunProfile], *, encoder: Encoder | None = None
) -> tuple[Table, Encoder]:
    """Return the records' table, and the encoder: the one given, or one fitted on these records.

    Args:
        records: Any order; the rows keep it. Cancelled jobs are omitted: they show neither a duration nor feasibility.
        profiles: Local runs by `RunProfile.run`; a record names its own in `local_run`.
        encoder: Of an earlier table, so that both have the same columns.
    """
    records = [one for one in records if one.state is not JobState.CANCELLED]
    jobs = [JobFeatures(one.task, one.configuration, one.price, profiles.get(one.local_run)) for one in records]
    references = [whole_job_duration(one.task, one.profile) for one in jobs]
    known = encoder if encoder is not None else Encoder.fit(jobs)
    time_s = np.array([one.duration_s if one.state in _RAN else None for one in records], dtype=np.float64)
    cost_usd = [_cost(record) if record.state in _RAN else None for record in records]
    table = Table(
        task=_text([one.task.task for one in jobs]),
        job=_text([one.job for one in records]),
        configuration_key=_text([configuration_key(one.configuration) for one in jobs]),
        features=known.encode_all(jobs),
        feature_names=known.feature_names,
        time_s=time_s,
        cost_usd=np.array(cost_usd, dtype=np.float64),
        price_usd_per_hour=np.array([one.price.usd_per_hour if one.price else None for one in jobs], dtype=np.float64),
        workers=np.array([one.configuration.workers for one in jobs], dtype=np.int64),
        censored=np.array([one.state is JobState.TIMED_OUT for one in records], dtype=bool),
        feasible=np.array([one.state in _RAN for one in records], dtype=bool),
        contended=np.array([one.contended for one in records], dtype=bool),
        reference_time_s=np.array([one.time_s for one in references], dtype=np.float64),
        reference_variance=np.array([one.log_variance for one in references], dtype=np.float64),
        reference_cut=np.array([one.kind is LocalRunKind.CUT for one in references], dtype=bool),
        reference_least_s=np.array([one.least_s for one in references], dtype=np.float64),
        is_reference=np.array([_is_reference(one) for one in jobs], dtype=bool),
        task_series=_task_series(jobs),
        task_layers={one.task.task: one.task.layers for one in reversed(jobs) if one.task.layers},
    )
    return table, known


def _text(values: Sequence[str]) -> AnyArray:
    return np.array(values, dtype=np.str_)


def _cost(record: JobRecord) -> float | None:
    """Dollars: as recorded, else price times machines times hours."""
    if record.cost_usd is not None or record.price is None or record.duration_s is None:
        return record.cost_usd
    return record.price.usd_per_hour * record.configuration.workers * record.duration_s / SECONDS_PER_HOUR


def _is_reference(job: JobFeatures) -> bool:
    return job.profile is not None and configuration_key(job.profile.machine) == configuration_key(job.configuration)


def _task_series(jobs: Sequence[JobFeatures]) -> dict[str, FloatArray]:
    """Series by task; of several local runs of a task, the one that comes first by name."""
    runs = {(one.task.task, one.profile.run): one.profile for one in jobs if one.profile is not None}
    series: dict[str, FloatArray] = {}
    for (task, _), profile in sorted(runs.items(), reverse=True):
        values = series_of(profile)
        if values is not None:
            series[task] = values
    return series
