"""What the user types: `turnbuckle layers` on each kind of device, `turnbuckle plan` for a set of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from schemas.plans import Plan
from services._runtime.exit_code import ExitCode
from tests.bench.outcome import say
from tests.bench.unequal.cases import COLUMNS, MEMORY_SHARE, Box
from tests.bench.unequal.link import Connection

JOB: Final = Path(__file__).with_name("job.py")
_TURNBUCKLE: Final = str(Path(sys.executable).with_name("turnbuckle"))
_AMPLE: Final = "1TiB"
_ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1", "COLUMNS": "400"}


class CommandFailedError(RuntimeError):
    """A command of the product has ended with an error that no measurement is."""


def measure_layers(model: str, sizes: Mapping[float, int], directory: Path) -> list[Path]:
    """Profiles of the model on sandboxes of so many cores, with micro-batches up to these sizes.

    All at the same time, as the devices compute in a job: the cores of one machine share its caches and its clock.

    Raises:
        CommandFailedError: one cannot be measured.
    """
    files = {cores: directory / f"{model}-{cores:g}.json" for cores in sizes}
    running = []
    for cores, size in sizes.items():
        say(f"layers of {model} on {cores:g} cores, micro-batches of 1 to {size}")
        running.append(subprocess.Popen(_layers(model, cores, size, files[cores]), **_captured()))
    for process in running:
        _, errors = process.communicate()
        if process.returncode:
            raise CommandFailedError(f"{' '.join(process.args)}: {errors}")
    return list(files.values())


def _layers(model: str, cores: float, size: int, out: Path) -> list[str]:
    place = ["--device", f"sandbox:{cores:g}", "--batch-up-to", str(size), "--out", str(out)]
    return [_TURNBUCKLE, "layers", f"{JOB}:{model}_build", "--data", f"{JOB}:{model}_samples", *place]


def plan(profiles: list[Path], devices: Path, batch: int, column: str) -> Plan | str:
    """The plan of a column's strategies, or the sentence by which there is none.

    Raises:
        CommandFailedError: the command ends with another error.
    """
    command = [_TURNBUCKLE, "plan", *map(str, profiles), "--devices", str(devices), "--batch", str(batch), "--json"]
    # Runs that this machine's trainings have recorded would correct the prediction that is measured here.
    command += ["--strategy", COLUMNS[column], "--memory-share", str(MEMORY_SHARE), "--measured", os.devnull]
    done = subprocess.run(command, check=False, **_captured())
    if done.returncode == ExitCode.BAD_DATA:
        return str(json.loads(done.stderr)["error"]["message"])
    if done.returncode:
        raise CommandFailedError(f"{' '.join(command)}: {done.stderr}")
    return Plan.model_validate_json(done.stdout)


def write_cluster(boxes: tuple[Box, ...], link: Connection, file: Path, *, is_ample: bool = False) -> Path:
    """cluster.yaml, a machine for each sandbox; ample: as if each had memory without end."""
    machines = {
        f"box{rank}": {
            "devices": [{"kind": box.kind, "memory": _AMPLE if is_ample else f"{box.memory_bytes >> 20}MiB"}]
        }
        for rank, box in enumerate(boxes)
    }
    rate = {"rate": f"{link.bits_per_s // 1_000_000}Mbit", "latency_ms": link.latency_ms}
    content = {"machines": machines, "between": {"default": rate}, "uneven_factor": link.uneven_factor}
    file.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return file


def _captured() -> dict[str, object]:
    return {"env": os.environ | _ENVIRONMENT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
