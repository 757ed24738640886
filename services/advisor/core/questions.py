"""Completion of a question: its task's features, local run, configurations and prices, and the table for the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from difflib import get_close_matches
from itertools import product
from types import MappingProxyType
from typing import Final, cast

import numpy as np
from pydantic import ValidationError

from schemas.accelerators import canonical_name, with_attached
from schemas.jobs import Attributes, Configuration, JobRecord, JobState, Price, TaskFeatures
from schemas.predictions import MAX_CONFIGURATIONS, Question
from schemas.runs import RunEnd, RunProfile
from services.advisor.core.accelerator_times import AcceleratorTimes
from services.advisor.core.arrays import TextArray
from services.advisor.core.catalogue import Listing, Machine
from services.advisor.core.encoder import Encoder, JobFeatures, configuration_key
from services.advisor.core.local_runs import (
    LocalRunElsewhere,
    SpeedRatio,
    compared_text,
    missing_local_link,
    placed,
    same_place,
    speed_ratio,
)
from services.advisor.core.measured_links import missing_link
from services.advisor.core.table import Table, build
from services.advisor.core.training_range import is_within
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
    reference_runs: frozenset[str] = frozenset()
    """Names of the local runs of records: those that ratios of durations are learnt against."""
    on_accelerators: AcceleratorTimes = field(default_factory=AcceleratorTimes)

    def references(self) -> list[RunProfile]:
        """Return the local runs of records."""
        return [self.runs[name] for name in sorted(self.reference_runs & self.runs.keys())]

    def newest_of_machines(self) -> list[Configuration]:
        """Return a configuration of each measured machine."""
        return [one.newest for one in self.machines.values()]

    def linked_machines(self) -> list[Configuration]:
        """Return those, and where the records' local runs were made: what a local run may be compared with."""
        return [*self.newest_of_machines(), *(one.machine for one in self.references())]

    @property
    def tasks_on_accelerators(self) -> frozenset[str]:
        """Tasks that ran on a machine with accelerators."""
        return frozenset(task for one in self.machines.values() if one.newest.accelerator for task in one.attributes)


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
    elsewhere: LocalRunElsewhere | None = None
    """The local run, where it was made on another machine than those of the records."""

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
    profile, elsewhere = _located(_profile(question, measured), measured, warnings)
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
        configurations, fewer = _all(question, listing, measured, (task, providers))
        warnings += [*noted, *fewer]
    configurations = tuple(_as_measured(one, listing, measured, task.task) for one in configurations)
    pairs = [_priced(one, listing, measured) for one in configurations]
    recorded = tuple(_without_provider(one, measured) for one, _ in pairs)
    unchecked = {(one.source, one.as_of) for _, one in pairs if one is not None and one.source in listing.unchecked}
    warnings += [
        f"the prices of {source} ({day}) were not checked against the provider's list (turnbuckle prices refresh)"
        for source, day in sorted(unchecked)
    ]
    duration = whole_job_duration(task, profile)
    return CompletedQuestion(
        task,
        profile,
        tuple(one for one, _ in pairs),
        recorded,
        tuple(price for _, price in pairs),
        tuple(warnings),
        duration.why_unknown or _unlinked(elsewhere, task, measured),
        elsewhere if math.isfinite(duration.time_s) else None,
    )


def _located(
    profile: RunProfile | None, measured: MeasuredTasks, warnings: list[str]
) -> tuple[RunProfile | None, LocalRunElsewhere | None]:
    """Return the local run to answer from, and where it was made if not where those of the records were."""
    references = measured.references()
    if profile is None or any(same_place(profile.machine, one.machine) for one in references):
        return profile, None
    task = profile.task.task
    if (known := measured.runs.get(measured.local_run.get(task, ""))) is not None and known in references:
        warnings.append(f"{task} has records, which name the local run {known.run}: it is used, and not {profile.run}")
        return known, None
    ratio = SpeedRatio()
    where = (profile.configuration.provider, profile.configuration.instance_type)
    if where not in measured.machines:
        speeds = [one.speed for one in references if one.speed is not None]
        ratio = speed_ratio(profile.speed, speeds)
        if profile.speed is not None and ratio.compared:
            warnings.append(
                f"the local machine beside that of the records' local runs: {compared_text(profile.speed, speeds)}"
            )
        elif task not in measured.batch_sizes:
            warnings.append(
                "the speed of the local machine's cores beside those of the records is not known, so intervals are "
                "wider: a profile of both machines compares them (turnbuckle profile)"
            )
    return profile, LocalRunElsewhere(placed(profile, measured.linked_machines()), ratio)


def _unlinked(elsewhere: LocalRunElsewhere | None, task: TaskFeatures, measured: MeasuredTasks) -> str:
    """Return why a local run says nothing of the measured machines; empty for a task that has records of its own."""
    if elsewhere is None or task.task in measured.batch_sizes:
        return ""
    return missing_local_link(elsewhere.place, measured.linked_machines())


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
) -> tuple[tuple[Configuration, ...], tuple[str, ...]]:
    """Return all machines of some providers, times workers, times batch sizes, and a warning if some are left out."""
    task, providers = scope
    machines = [(provider, name) for provider, name in sorted(listing.machines) if provider in providers]
    if not machines:
        raise BadQuestionError("the price catalogue lists no machine: name configurations, or refresh the catalogue")
    workers = question.workers or DEFAULT_WORKERS
    batches = question.batch_sizes or measured.batch_sizes.get(task.task, ()) or (0,)
    variants = [(where, one) for where in machines for one in _attributes_on(where, measured, task.task)]
    fewer: tuple[str, ...] = ()
    if (count := len(variants) * len(workers) * len(batches)) > MAX_CONFIGURATIONS:
        near = [one for one in variants if _is_near(listing.machines[one[0]][0], one[0], measured)]
        if not near or len(near) * len(workers) * len(batches) > MAX_CONFIGURATIONS:
            raise BadQuestionError(
                f"{count} configurations are too many: at most {MAX_CONFIGURATIONS}; "
                "name fewer machines, workers or batch sizes"
            )
        names = {where for where, _ in variants} - {where for where, _ in near}
        left_out = (
            f"{len(names)} of {len(machines)} listed machines are far from all that were measured and are left out: "
            f"with them {count} configurations would be too many (name machines to ask about them)"
        )
        fewer, variants = (left_out,), near
    try:
        found = tuple(
            Configuration(
                instance_type=name, provider=provider, workers=number, batch_size=batch, attributes=dict(attributes)
            )
            for ((provider, name), attributes), number, batch in product(variants, workers, batches)
        )
    except ValidationError as error:
        raise BadQuestionError(
            "workers must be at least 1 (and at most 100,000), and batch sizes not negative"
        ) from error
    return found, fewer


def _is_near(machine: Machine, where: MachineKey, measured: MeasuredTasks) -> bool:
    """Whether a listed machine was measured, has one accelerator, or lies within the sizes that were measured."""
    known = measured.newest_of_machines()
    if _measured_machine(where, measured) is not None or machine.accelerators == 1:
        return True
    place = Configuration(
        instance_type=where[1], provider=where[0], workers=1, vcpu=machine.vcpu, accelerator=machine.accelerator
    )
    sizes = ([one.vcpu for one in known], machine.vcpu), ([one.memory_gb for one in known], machine.memory_gb)
    return not missing_link(place, known) and all(is_within(value, of) for of, value in sizes)


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
    machine, price = found[0], cast("Price | None", found[1])
    if configuration.accelerator and not _has_accelerators(machine, configuration):
        # A price of the machine alone, or with others, is none of this one.
        attached = with_attached(machine.instance_type, configuration.accelerator, max(configuration.accelerators, 1))
        machine, price = listing.machines.get((provider, attached), (machine, None))
    for name in _LISTED_FIELDS:
        if not getattr(configuration, name) and getattr(machine, name):
            update[name] = getattr(machine, name)
    return configuration.model_copy(update=update), price


def _has_accelerators(machine: Machine, configuration: Configuration) -> bool:
    count = configuration.accelerators or machine.accelerators
    return canonical_name(machine.accelerator) == configuration.accelerator and machine.accelerators == count


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
    local = configuration_key(question.profile.machine) if question.profile is not None else ""
    prices = [one.usd_per_hour if one is not None else math.nan for one in question.prices]
    return replace(
        table,
        job=_texts([str(row) for row in range(count)]),
        configuration_key=keys,
        features=features,
        price_usd_per_hour=np.array(prices, dtype=np.float64),
        workers=np.array([one.workers for one in question.configurations], dtype=np.int64),
        is_reference=np.asarray(keys == local),
        local_run=_local_row(question, encoder),
    ).without_outcomes()


def _local_row(question: CompletedQuestion, encoder: Encoder) -> Table | None:
    """Return the row of a local run elsewhere, with its duration on cores as those of the records' local runs."""
    if question.elsewhere is None or question.profile is None:
        return None
    record = _record(question, 0).model_copy(
        update={"configuration": question.elsewhere.place, "price": None, "local_run": question.profile.run}
    )
    row, _ = build([record], {question.profile.run: question.profile}, encoder=encoder)
    speed = question.elsewhere.speed
    return replace(
        row,
        reference_time_s=row.reference_time_s * math.exp(speed.logarithm),
        reference_variance=row.reference_variance + speed.variance,
    ).without_outcomes()


def _texts(values: Sequence[str]) -> TextArray:
    return np.array(values, dtype=np.str_)


def _runs(question: CompletedQuestion) -> dict[str, RunProfile]:
    """Of a local run elsewhere the rows have neither its duration nor its series: both are of another machine."""
    at_reference = question.profile is not None and question.elsewhere is None
    return {question.profile.run: question.profile} if question.profile is not None and at_reference else {}


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
