"""Completion of a question: its task's features, local run, configurations and prices, and the table for the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from difflib import get_close_matches
from itertools import product
from types import MappingProxyType
from typing import Final

import numpy as np
from pydantic import ValidationError

from schemas.accelerators import canonical_name
from schemas.jobs import Attributes, Configuration, JobRecord, JobState, Price, TaskFeatures
from schemas.predictions import MAX_CONFIGURATIONS, Question
from schemas.runs import RunEnd, RunProfile
from services.advisor.core.arrays import TextArray
from services.advisor.core.catalogue import Listing
from services.advisor.core.encoder import Encoder, JobFeatures, configuration_key
from services.advisor.core.table import Table, build
from services.advisor.core.whole_job_duration import whole_job_duration

EMULATED: Final = "emulated"
"""Provider of the emulated machines, which cannot be rented."""
DEFAULT_WORKERS: Final = (1, 2, 4, 8)
LEAST_PROFILE_S: Final = 5.0
"""A local run that was stopped earlier has measured only its start-up."""
_SHOWN: Final = 8
_LISTED_FIELDS: Final = (
    "vcpu",
    "memory_gb",
    "network_gbps",
    "accelerator",
    "accelerators",
    "accelerator_memory_gb",
)
"""Fields of a configuration that the price catalogue has of its machine."""
_MACHINE_FIELDS: Final = (*_LISTED_FIELDS, "disk_gb")


class BadQuestionError(ValueError):
    """The question cannot be answered; the text gives the reason and the remedy."""


MachineKey = tuple[str, str]
"""Provider and instance type."""


@dataclass(frozen=True, slots=True)
class MeasuredMachine:
    """A machine in the records: its sizes, and the attributes of the configurations that ran on it."""

    newest: Configuration
    """Of the newest record."""
    attributes: Mapping[str, tuple[Attributes, ...]]
    """Distinct attributes of its configurations, by task."""
    of_all_tasks: tuple[Attributes, ...]

    def attributes_of(self, task: str) -> tuple[Attributes, ...]:
        """Return those of a task's configurations; of a task that did not run on it those of all tasks."""
        return self.attributes.get(task, self.of_all_tasks)


@dataclass(frozen=True, slots=True)
class MeasuredTasks:
    """Features, local runs and batch sizes of the tasks in the records."""

    tasks: Mapping[str, TaskFeatures] = field(default_factory=lambda: MappingProxyType({}))
    """The newest features by task."""
    runs: Mapping[str, RunProfile] = field(default_factory=lambda: MappingProxyType({}))
    """Local runs by name."""
    local_run: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The name of a task's local run, by task."""
    providers: frozenset[str] = frozenset()
    """Providers of the machines in the records."""
    batch_sizes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Measured batch sizes by task."""
    machines: Mapping[MachineKey, MeasuredMachine] = field(default_factory=lambda: MappingProxyType({}))
    """Measured machines by provider and instance type."""


@dataclass(frozen=True, slots=True, eq=False)
class CompletedQuestion:
    """A question with its task's features, local run, configurations and prices filled in."""

    task: TaskFeatures
    profile: RunProfile | None
    configurations: tuple[Configuration, ...]
    recorded: tuple[Configuration, ...]
    """The same as the records have them: without a provider where those of the machine name none."""
    prices: tuple[Price | None, ...]
    """Per configuration; of one machine."""
    warnings: tuple[str, ...]
    why_unknown: str = ""
    """Why no configuration's time can be predicted, and the remedy; empty if it can."""

    @property
    def prices_as_of(self) -> date | None:
        """The day of the oldest price used."""
        return min((one.as_of for one in self.prices if one is not None), default=None)


def complete(question: Question, listing: Listing, measured: MeasuredTasks) -> CompletedQuestion:
    """Validate a question and fill in what it leaves out.

    Raises:
        BadQuestionError: it cannot be answered.
    """
    warnings: list[str] = []
    profile = _profile(question, measured)
    task = _features(question.task, profile, measured)
    _check_attributes("task", task.attributes)
    if profile is None:
        warnings.append(
            f"no local run of {task.task} is known: predictions are much better with one (turnbuckle profile)"
        )
    elif profile.end is RunEnd.FINISHED and task.epochs and not profile.task.epochs:
        warnings.append(
            f"the local run {profile.run} does not say how many epochs it trained: it is taken for the whole job of "
            f"{task.epochs} (turnbuckle profile --epochs)"
        )
    if profile is not None and profile.contention is not None and profile.contention.is_high:
        warnings.append(
            f"the machine was busy during the local run {profile.run}: {profile.contention.summary}; times are less "
            "exact: profile again on a quiet machine"
        )
    if profile is None and (unscaled := _unscaled(question.task, measured.tasks.get(task.task))):
        warnings.append(
            f"the records of {task.task} do not say how many {unscaled} they trained: each is taken for the whole job"
        )
    if not task.parameter_count and not task.layers:
        warnings.append(f"the features of {task.task} are not given (turnbuckle features): predictions are less exact")
    configurations = question.configurations
    if not configurations:
        providers, noted = _providers(question, listing, measured)
        configurations = _all(question, listing, measured, (task, providers))
        warnings += noted
    configurations = tuple(_as_measured(one, listing, measured, task.task) for one in configurations)
    pairs = [_priced(one, listing, measured) for one in configurations]
    recorded = tuple(_without_provider(one, measured) for one, _ in pairs)
    unchecked = {(one.source, one.as_of) for _, one in pairs if one is not None and one.source in listing.unchecked}
    warnings += [
        f"the prices of {source} ({day}) were not checked against the provider's list (turnbuckle prices refresh)"
        for source, day in sorted(unchecked)
    ]
    return CompletedQuestion(
        task,
        profile,
        tuple(one for one, _ in pairs),
        recorded,
        tuple(price for _, price in pairs),
        tuple(warnings),
        whole_job_duration(task, profile).why_unknown,
    )


def _unscaled(asked: TaskFeatures, recorded: TaskFeatures | None) -> str:
    """Return what a question says of its task's work and the task's records do not; empty if there is nothing."""
    names = [one for one in ("epochs", "steps") if recorded is not None and getattr(asked, one)]
    return " or ".join(names) if names and not any(getattr(recorded, one) for one in names) else ""


def _check_attributes(where: str, attributes: Attributes) -> None:
    for name, value in attributes.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise BadQuestionError(f"{where}: {name} is {value}: it must be a finite number")


def _profile(question: Question, measured: MeasuredTasks) -> RunProfile | None:
    profile = question.profile
    if profile is None and question.run:
        profile = measured.runs.get(question.run)
        if profile is None:
            raise BadQuestionError(f"no local run {question.run!r} is known{_near(question.run, measured.runs)}")
    if profile is None:
        return measured.runs.get(measured.local_run.get(question.task.task, ""))
    if profile.end is RunEnd.FAILED:
        raise BadQuestionError(f"the local run {profile.run} failed ({profile.reason or 'no reason'}): make it again")
    if not lasted_enough(profile):
        raise BadQuestionError(
            f"the local run {profile.run} lasted {profile.duration_s:.3g} s: at least {LEAST_PROFILE_S:g} s are needed "
            "to predict more than its start-up (turnbuckle profile --minutes 10)"
        )
    if not is_usable(profile):
        raise BadQuestionError(f"the local run {profile.run} holds no samples, and was not finished: it cannot be used")
    return profile


def lasted_enough(profile: RunProfile) -> bool:
    """Whether a local run lasted beyond its start-up; a finished one has measured the whole training."""
    return profile.end is RunEnd.FINISHED or profile.duration_s >= LEAST_PROFILE_S


def is_usable(profile: RunProfile) -> bool:
    """Whether a local run has series, or at least the duration of the whole training (as imported references do)."""
    return profile.end is RunEnd.FINISHED or any(worker.samples for worker in profile.workers)


def _features(task: TaskFeatures, profile: RunProfile | None, measured: MeasuredTasks) -> TaskFeatures:
    """The question's features, completed by the local run's, then by the records'."""
    sources = [one for one in (profile.task if profile else None, measured.tasks.get(task.task)) if one is not None]
    if not _has_features(task) and not sources:
        known = _near(task.task, measured.tasks)
        raise BadQuestionError(
            f"nothing is known of the task {task.task!r}{known}: give its features (turnbuckle features) "
            "or a local run (turnbuckle profile)"
        )
    for other in sources:
        missing = {
            name: getattr(other, name)
            for name in TaskFeatures.model_fields
            if name not in {"task", "attributes"} and not getattr(task, name) and getattr(other, name)
        }
        task = task.model_copy(update=missing | {"attributes": {**other.attributes, **task.attributes}})
    return task


def _has_features(task: TaskFeatures) -> bool:
    return any(getattr(task, name) for name in TaskFeatures.model_fields if name != "task")


def _near(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if near := get_close_matches(name, names, n=1):
        return f"; did you mean {near[0]!r}?"
    shown = ", ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")
    return f" (known: {shown})" if names else " (none is known)"


def _providers(question: Question, listing: Listing, measured: MeasuredTasks) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the providers of a question, and warnings about them.

    Those named; else those measured, but emulated machines only if there are no others: they cannot be rented.
    """
    known = frozenset(listing.providers())
    if unlisted := sorted(set(question.providers) - known):
        raise BadQuestionError(f"no machine of {', '.join(unlisted)} is listed{_near(unlisted[0], known)}")
    if question.providers:
        return frozenset(question.providers), ()
    found = (known & measured.providers) or known
    if EMULATED not in found:
        return found, ()
    if found == {EMULATED}:
        return found, ("these are emulated machines: they rank no real cloud (docs/dataset.md)",)
    return found - {EMULATED}, (f"emulated machines are left out (--provider {EMULATED} asks about them)",)


def _all(
    question: Question, listing: Listing, measured: MeasuredTasks, scope: tuple[TaskFeatures, frozenset[str]]
) -> tuple[Configuration, ...]:
    """All machines of some providers, times workers, times batch sizes."""
    task, providers = scope
    machines = [(provider, name) for provider, name in sorted(listing.machines) if provider in providers]
    if not machines:
        raise BadQuestionError("the price catalogue lists no machine: name configurations, or refresh the catalogue")
    workers = question.workers or DEFAULT_WORKERS
    batches = question.batch_sizes or measured.batch_sizes.get(task.task, ()) or (0,)
    variants = [(where, one) for where in machines for one in _attributes_on(where, measured, task.task)]
    if (count := len(variants) * len(workers) * len(batches)) > MAX_CONFIGURATIONS:
        raise BadQuestionError(
            f"{count} configurations are too many: at most {MAX_CONFIGURATIONS}; "
            "name fewer machines, workers or batch sizes"
        )
    try:
        return tuple(
            Configuration(
                instance_type=name, provider=provider, workers=number, batch_size=batch, attributes=dict(attributes)
            )
            for ((provider, name), attributes), number, batch in product(variants, workers, batches)
        )
    except ValidationError as error:
        raise BadQuestionError(
            "workers must be at least 1 (and at most 100,000), and batch sizes not negative"
        ) from error


def _measured_machine(where: MachineKey, measured: MeasuredTasks) -> MeasuredMachine | None:
    """Return a machine of the records; records that name no provider are of whichever has such a machine."""
    return measured.machines.get(where) or measured.machines.get(("", where[1]))


def _without_provider(configuration: Configuration, measured: MeasuredTasks) -> Configuration:
    """Return a configuration with its records' provider: a measured configuration must be the same one."""
    machine = _measured_machine((configuration.provider, configuration.instance_type), measured)
    if machine is None or machine.newest.provider == configuration.provider:
        return configuration
    return configuration.model_copy(update={"provider": machine.newest.provider})


def _attributes_on(where: MachineKey, measured: MeasuredTasks, task: str) -> tuple[Attributes, ...]:
    machine = _measured_machine(where, measured)
    return ({},) if machine is None else machine.attributes_of(task)


def _as_measured(configuration: Configuration, listing: Listing, measured: MeasuredTasks, task: str) -> Configuration:
    """Return the configuration with what the records say of its machine and the question does not.

    Otherwise a measured configuration would be another one. Attributes are filled in where those in the question leave
    one combination of them.
    """
    provider = configuration.provider
    if not provider:
        known = {where for where, name in measured.machines if where and name == configuration.instance_type}
        known |= set(listing.providers_of(configuration.instance_type))
        provider = next(iter(known)) if len(known) == 1 else ""
    update: dict[str, object] = {"accelerator": canonical_name(configuration.accelerator)}
    machine = _measured_machine((provider, configuration.instance_type), measured)
    if machine is None:
        return configuration.model_copy(update=update)
    update["provider"] = provider
    for name in _MACHINE_FIELDS:
        if not getattr(configuration, name) and getattr(machine.newest, name):
            update[name] = getattr(machine.newest, name)
    given = configuration.attributes
    fitting = [one for one in machine.attributes_of(task) if all(one.get(name) == given[name] for name in given)]
    if len(fitting) == 1:
        update["attributes"] = dict(fitting[0])
    return configuration.model_copy(update=update)


def _priced(
    configuration: Configuration, listing: Listing, measured: MeasuredTasks
) -> tuple[Configuration, Price | None]:
    """The configuration with its machine's sizes and price from the catalogue."""
    _check_attributes(configuration.instance_type, configuration.attributes)
    update: dict[str, object] = {}
    provider = configuration.provider
    if not provider and len(providers := listing.providers_of(configuration.instance_type)) == 1:
        update["provider"] = provider = providers[0]
    found = listing.machines.get((provider, configuration.instance_type))
    if found is None:
        described = configuration.vcpu and configuration.memory_gb
        if not described and _measured_machine((provider, configuration.instance_type), measured) is None:
            raise BadQuestionError(_not_listed(configuration, listing))
        return configuration, None
    machine, price = found
    for name in _LISTED_FIELDS:
        if not getattr(configuration, name) and getattr(machine, name):
            update[name] = getattr(machine, name)
    return configuration.model_copy(update=update), price


def _not_listed(configuration: Configuration, listing: Listing) -> str:
    name, provider = configuration.instance_type, configuration.provider
    if not provider and (providers := listing.providers_of(name)):
        return f"the instance type {name!r} is listed for {', '.join(map(repr, providers))}: name its provider"
    known = {other for where, other in listing.machines if provider in ("", where)}
    return (
        f"the instance type {name!r}{f' of {provider}' if provider else ''} is not in the price catalogue"
        f"{_near(name, known)}: give its vcpu and memory_gb, or add it (turnbuckle prices refresh)"
    )


def question_table(question: CompletedQuestion, encoder: Encoder) -> Table:
    """Return the table for the model: one row per configuration, without outcomes.

    As `table.build`, but features common to all rows are encoded once: 500 rows take some 15 ms instead of 400.
    """
    first, _ = build([_record(question, 0)], _runs(question), encoder=encoder)
    count = len(question.configurations)
    table = first.select(np.zeros(count, dtype=np.int64))
    own = table.columns("config.")
    features = table.features.copy()
    bare, machines = TaskFeatures(task=question.task.task), Encoder(tuple(table.feature_names[at] for at in own))
    features[:, own] = machines.encode_all(
        [JobFeatures(bare, where, price) for where, price in zip(question.recorded, question.prices, strict=True)]
    )
    keys = _texts([configuration_key(one) for one in question.recorded])
    local = configuration_key(question.profile.configuration) if question.profile is not None else ""
    prices = [one.usd_per_hour if one is not None else math.nan for one in question.prices]
    return replace(
        table,
        job=_texts([str(row) for row in range(count)]),
        configuration_key=keys,
        features=features,
        price_usd_per_hour=np.array(prices, dtype=np.float64),
        workers=np.array([one.workers for one in question.configurations], dtype=np.int64),
        is_reference=np.asarray(keys == local),
    ).without_outcomes()


def _texts(values: Sequence[str]) -> TextArray:
    return np.array(values, dtype=np.str_)


def _runs(question: CompletedQuestion) -> dict[str, RunProfile]:
    return {question.profile.run: question.profile} if question.profile is not None else {}


def _record(question: CompletedQuestion, row: int) -> JobRecord:
    return JobRecord(
        job="question",
        dataset="question",
        task=question.task,
        configuration=question.recorded[row],
        state=JobState.SUCCEEDED,
        price=question.prices[row],
        local_run=question.profile.run if question.profile is not None else "",
    )
