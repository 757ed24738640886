"""The data sets of the advisor's benchmark as job records: ours, and public ones that the project does not contain.

In the public sets nobody made local runs. There, one reference configuration's measured time stands in for the local
run; its own row is known beforehand and is never scored.
"""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from schemas.jobs import Configuration, JobRecord, JobState, Price, TaskFeatures
from schemas.runs import RunEnd, RunProfile
from services._jobs.record_files import read_job_file
from services.advisor.core.arrays import TextArray
from services.advisor.core.encoder import configuration_key
from services.advisor.core.table import SECONDS_PER_HOUR, Table, build
from services.collector.emulator.tasks import base_task

DEFAULT_DATA: Final = Path("../shared/data")
SHIPPED: Final = Path("services/advisor/data")
DOWNLOADED: Final = date(2026, 11, 21)


class MissingDataError(Exception):
    """The set is not on this machine; the message says where it was looked for."""


@dataclass(frozen=True)
class DataSet:
    """Records with what is left out together."""

    name: str
    about: str
    """What it tests, and what was assumed."""
    records: tuple[JobRecord, ...]
    profiles: Mapping[str, RunProfile]
    applications: Mapping[str, str] = field(default_factory=dict)
    """By task, where several tasks are one application; empty: each task is one."""

    def table(self) -> Table:
        """One row per task and configuration: repeats are averaged, so no repeat of a scored row is trained on."""
        return build(self.records, self.profiles)[0].without_repeats()

    def groups(self, table: Table) -> TextArray:
        """What is left out together, by row."""
        return np.array([self.applications.get(str(task), str(task)) for task in table.task], dtype=np.str_)

    @cached_property
    def digest(self) -> str:
        """Of all records: the same text is the same data."""
        content = hashlib.sha256()
        for record in sorted(self.records, key=lambda one: one.job):
            content.update(record.model_dump_json().encode())
        return content.hexdigest()[:16]


def _rows(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    if not path.is_file():
        raise MissingDataError(f"{path} is not there")
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def _reference_profile(record: JobRecord) -> RunProfile:
    """A reference run as if it had been made locally; it has no series."""
    return RunProfile(
        run=f"reference-{record.task.task}",
        task=record.task,
        configuration=record.configuration,
        duration_s=record.duration_s or 0.0,
        end=RunEnd.FINISHED,
        workers=(),
    )


def with_reference(
    records: Sequence[JobRecord], eligible: Callable[[Configuration], bool]
) -> tuple[tuple[JobRecord, ...], dict[str, RunProfile]]:
    """Let the configuration that ran through in most tasks stand in for the local run.

    Repeats of it are averaged geometrically. A task that did not complete it has no local run.
    """
    done = [one for one in records if one.state is JobState.SUCCEEDED and eligible(one.configuration)]
    tasks = {(configuration_key(one.configuration), one.task.task) for one in done}
    counts = Counter(key for key, _ in tasks)
    reference = min(counts, key=lambda key: (-counts[key], key))
    profiles: dict[str, RunProfile] = {}
    for task in sorted({one.task.task for one in done}):
        mine = [one for one in done if one.task.task == task and configuration_key(one.configuration) == reference]
        if mine:
            seconds = float(np.exp(np.mean([np.log(one.duration_s or np.nan) for one in mine])))
            profile = _reference_profile(mine[0].model_copy(update={"duration_s": seconds}))
            profiles[profile.run] = profile
    named = (one.model_copy(update={"local_run": _run_of(one, profiles)}) for one in records)
    return tuple(named), profiles


def _run_of(record: JobRecord, profiles: Mapping[str, RunProfile]) -> str:
    run = f"reference-{record.task.task}"
    return run if run in profiles else ""


def _price(usd_per_hour: float, source: str) -> Price:
    return Price(usd_per_hour=usd_per_hour, as_of=DOWNLOADED, source=source)


_IBM_STATES: Final = {"ok": JobState.SUCCEEDED, "Timed out.": JobState.TIMED_OUT}


def _ibm_configuration(row: Mapping[str, str]) -> Configuration:
    """Providers are anonymous: family, size and type are labels without an order, so they are categories."""
    provider = row["provider"]
    parts = {
        name: f"{provider}{row[f'{provider}_{name}']}"
        for name in ("family", "type", "vcpu")
        if f"{provider}_{name}" in row
    }
    return Configuration(
        instance_type="-".join(parts.values()),
        provider=provider,
        workers=int(row["nodes"]),
        attributes=dict(parts),
    )


def _ibm_prices(rows: Iterable[Mapping[str, str]]) -> dict[str, float]:
    """The set's costs are price times nodes times time exactly; the median takes the rounding away."""
    found: dict[str, list[float]] = {}
    for row in rows:
        node_hours = float(row["target_runtime"]) * int(row["nodes"]) / SECONDS_PER_HOUR
        found.setdefault(_ibm_configuration(row).instance_type, []).append(float(row["target_cost"]) / node_hours)
    return {machine: float(np.median(prices)) for machine, prices in found.items()}


def multicloud_ibm(data: Path) -> DataSet:
    """IBM's multi-cloud set: 30 Dask workloads on three anonymous clouds, with failures.

    The file's first column is a row number: it is not read.
    """
    rows = _rows(data / "multicloud_ibm" / "multi-cloud-configuration.csv")
    prices = _ibm_prices(rows)
    seen: Counter[tuple[str, str]] = Counter()
    records = []
    for row in rows:
        algorithm_of, algorithm = row["workload"].split("-", 1)
        configuration = _ibm_configuration(row)
        key = (row["workload"], configuration_key(configuration))
        records.append(
            JobRecord(
                job=f"ibm-{key[0]}-{key[1]}-{seen[key]}",
                dataset="multicloud_ibm",
                task=TaskFeatures(task=row["workload"], attributes={"algorithm": algorithm, "data": algorithm_of}),
                configuration=configuration,
                state=_IBM_STATES.get(row["status"], JobState.FAILED),
                duration_s=float(row["target_runtime"]),
                cost_usd=float(row["target_cost"]),
                price=_price(prices[configuration.instance_type], "multicloud_ibm"),
                repeat=seen[key],
                reason="" if row["status"] == "ok" else row["status"],
            )
        )
        seen[key] += 1
    named, profiles = with_reference(records, lambda one: one.provider == "A" and one.workers == 2)
    return DataSet(
        "multicloud_ibm",
        "machine learning on Dask, no deep learning; three anonymous clouds, 2-5 nodes, with failures; "
        "reference: one machine type of cloud A, 2 nodes; no series",
        named,
        profiles,
    )


_T2: Final[Mapping[str, tuple[float, float, float]]] = {
    "t2.small": (1, 2, 0.023),
    "t2.medium": (2, 4, 0.0464),
    "t2.xlarge": (4, 16, 0.1856),
    "t2.2xlarge": (8, 32, 0.3712),
}
"""vCPU, GB and $/h; prices are AWS' list prices from memory (us-east-1, Linux): an assumption."""

TRIMTUNER_LIMIT_S: Final = 599.0
"""Jobs were stopped at about 600 s."""

_LEARNING_RATES: Final = ("0.00001", "0.0001", "0.001")


def _trimtuner_record(network: str, row: Mapping[str, str]) -> JobRecord:
    vcpu, memory_gb, usd_per_hour = _T2[row["vm_flavor"]]
    machines = int(row["n_workers"]) + int(row["n_ps"])
    seconds = float(row["training_time"])
    capped = seconds >= TRIMTUNER_LIMIT_S
    samples = int(row["training_set_size"])
    return JobRecord(
        job=f"trimtuner-{row['_id/$oid']}",
        dataset="trimtuner",
        task=TaskFeatures(task=f"{network}-{samples}", samples_per_epoch=samples, attributes={"network": network}),
        configuration=Configuration(
            instance_type=row["vm_flavor"],
            provider="aws",
            workers=int(row["n_workers"]),
            batch_size=int(row["batch_size"]),
            vcpu=vcpu,
            memory_gb=memory_gb,
            attributes={"updates": row["synchronism"]},
        ),
        state=JobState.TIMED_OUT if capped else JobState.SUCCEEDED,
        duration_s=seconds,
        cost_usd=usd_per_hour * machines * seconds / SECONDS_PER_HOUR,
        price=_price(usd_per_hour, "aws-from-memory"),
        repeat=_LEARNING_RATES.index(row["learning_rate"]),
    )


def trimtuner(data: Path) -> DataSet:
    """TrimTuner's set: a convolutional and a recurrent network with parameter servers, 5 data sizes each.

    The unet files of the same authors are not used: their time is the budget that the row was given (``sizeSeconds``),
    so there is nothing to predict.
    """
    records = [
        _trimtuner_record(network, row)
        for network in ("cnn", "rnn")
        for row in _rows(data / "trimtuner" / f"{network}.csv")
    ]
    named, profiles = with_reference(records, lambda one: one.workers <= 16)
    return DataSet(
        "trimtuner",
        "TensorFlow with a parameter server, AWS t2, 2-80 workers, batch 16/256, sync/async; a data size of a network "
        "is a task, a network is left out with all of its sizes; the three learning rates of a configuration are its "
        "repeats; jobs stopped at 600 s are not scored; "
        "ten tasks of two networks: intervals over tasks are too narrow; "
        "cost = assumed t2 price x (workers + 1) x time; no series",
        named,
        profiles,
        {one.task.task: one.task.task.partition("-")[0] for one in records},
    )


def trimtuner_sizes(data: Path) -> DataSet:
    """The same, with only one data size of one network left out: the application itself is known."""
    whole = trimtuner(data)
    return replace(
        whole, name="trimtuner_sizes", about="as trimtuner, but each data size is left out alone", applications={}
    )


def emulated(_data: Path) -> DataSet:
    """The set that is shipped with the project: see docs/dataset.md."""
    paths = sorted(SHIPPED.glob("*.parquet"))
    if not paths:
        raise MissingDataError(f"{SHIPPED} holds no Parquet file")
    files = [read_job_file(path) for path in paths]
    records = [record for one in files for record in one.records if not record.contended]
    return DataSet(
        "emulated",
        "ours: PyTorch DDP on instance types emulated on one machine, every task with a local run and its series; "
        "runs that were contended are not used; prices are synthetic",
        tuple(records),
        {profile.run: profile for one in files for profile in one.profiles},
        {record.task.task: base_task(record.task.task)[0] for record in records},
    )


SETS: Final[Mapping[str, Callable[[Path], DataSet]]] = {
    "emulated": emulated,
    "multicloud_ibm": multicloud_ibm,
    "trimtuner": trimtuner,
    "trimtuner_sizes": trimtuner_sizes,
}
