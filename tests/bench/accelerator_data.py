"""The public GPU set: training steps that Gavel and Cephalo measured, as job records.

``python -m tests.bench.accelerator_data`` writes the file that the advisor ships from copies of both tables. Of Gavel's
physical cluster, what ran alone on one GPU; its rows of several GPUs are sums over workers, and are left out. Of
Cephalo's layers, forward plus backward pass of one layer with 1 to 16 sequences, of models whose sizes are known; lines
fitted to them are left out. Each record is a training of 1,000 steps.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from schemas.accelerators import find_accelerator
from schemas.jobs import Attributes, Configuration, JobRecord, JobState, TaskFeatures
from services._jobs.record_files import write_job_file
from services.advisor.core.accelerator_times import APPLICATION
from services.advisor.model_lineages import ACCELERATOR_DATA
from services.collector.profiler.torch_features import count_parameters, training_work
from tests.bench.accelerator_models import Made, cephalo_layer, gavel_model
from tests.bench.advisor_data import DEFAULT_DATA

STEPS: Final = 1_000
_GAVEL_JOB: Final = re.compile(r"\('(?P<model>[\w-]+)(?: \(batch size (?P<batch>\d+)\))?', 1\)")
_GAVEL_GPUS: Final = ("k80", "p100", "v100")
_BATCHES: Final = (1, 2, 4, 8, 16)


def gavel_records(folder: Path) -> Iterator[JobRecord]:
    """Yield what ran alone on one GPU, and ran at all."""
    table: dict[str, Any] = _read(folder / "physical_cluster_throughputs.json")
    tasks: dict[str, TaskFeatures] = {}
    for gpu in _GAVEL_GPUS:
        for name, beside in table[gpu].items():
            if (job := _GAVEL_JOB.fullmatch(name)) is None or not beside["null"]:
                continue
            model = job["model"]
            if model not in tasks:
                tasks[model] = _task(f"gavel/{model}", model, gavel_model(model))
            where = _configuration(gpu, int(job["batch"] or 0), "fp32")
            yield _record(tasks[model], where, 1.0 / beside["null"])


def cephalo_records(folder: Path) -> Iterator[JobRecord]:
    """Yield steps of one layer, where they were measured and its sizes are known."""
    latencies: dict[str, Any] = _read(folder / "model_latencies.json")
    sizes: dict[str, Any] = _read(folder / "model_stats.json")
    for model, by_gpu in latencies.items():
        if model not in sizes or "vit" in model or model.endswith("_test"):  # images' tokens are not known
            continue
        tasks: dict[str, TaskFeatures] = {}
        for gpu, by_length in by_gpu.items():
            for length, by_precision in by_length.items():
                for precision, found in by_precision.items():
                    if not (isinstance(found, list) and len(found) == 4):
                        continue
                    if length not in tasks:
                        made = cephalo_layer(model, sizes[model], int(length))
                        name = model.removeprefix("deepspeed")
                        family = name.partition("_")[0].removesuffix("v2")
                        tasks[length] = _task(f"cephalo/{name} {length}", family, made)
                    for batch in (one for one in _BATCHES if one <= len(found[2])):
                        where = _configuration(gpu, batch, precision.replace("float", "fp"))
                        yield _record(tasks[length], where, (found[2][batch - 1] + found[3][batch - 1]) / 1e3)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _task(name: str, application: str, made: Made | None) -> TaskFeatures:
    attributes: Attributes = {APPLICATION: application}
    if made is None:
        return TaskFeatures(task=name, steps=STEPS, attributes=attributes)
    work = training_work(*made)
    assert work is not None
    return TaskFeatures(
        task=name,
        parameter_count=count_parameters(made[0])[0],
        steps=STEPS,
        step_flops=work.flops,
        step_bytes=work.bytes,
        step_weight_bytes=work.weight_bytes,
        attributes=attributes,
    )


def _configuration(gpu: str, batch: int, precision: str) -> Configuration:
    device = find_accelerator(gpu)
    assert device is not None, gpu
    return Configuration(
        instance_type=device.name,
        workers=1,
        batch_size=batch,
        accelerator=device.name,
        accelerators=1,
        accelerator_memory_gb=device.memory_gb,
        attributes={"precision": precision},
    )


def _record(task: TaskFeatures, where: Configuration, step_s: float) -> JobRecord:
    precision = where.attributes["precision"]
    return JobRecord(
        job=f"{task.task} x{where.batch_size} {precision} {where.accelerator}",
        dataset="accelerators",
        task=task,
        configuration=where,
        state=JobState.SUCCEEDED,
        duration_s=STEPS * step_s,
    )


def public_records(data: Path) -> list[JobRecord]:
    """Return both tables' records, without repeats of a job."""
    found = [*gavel_records(data / "gavel"), *cephalo_records(data / "cephalo")]
    return list({one.job: one for one in found}.values())


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.accelerator_data")
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder with gavel and cephalo (%(default)s)")
    parser.add_argument("--out", type=Path, default=ACCELERATOR_DATA, help="default %(default)s")
    given = parser.parse_args()
    print(f"{write_job_file(given.out, public_records(given.data))} records in {given.out}")


if __name__ == "__main__":
    main()
