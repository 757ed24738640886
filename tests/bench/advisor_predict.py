"""How long `advisor.predict` takes for 500 configurations, through NATS: ``python -m tests.bench.advisor_predict``.

The advisor is a process of its own; its records are a file's (``--data``, default: the shipped data set) or made up
(``--made-up N``). Prints the machine, p50, p99 and the advisor's own CPU time per question; asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from schemas.jobs import Configuration
from schemas.predictions import PredictReply, PredictRequest
from schemas.runs import RunProfile
from schemas.services.advisor import ADVISOR_PREDICT
from services._jobs.record_files import JobFile, read_job_file, write_job_file
from services._runtime.bus.api import BusError
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.cli.advise.example import shipped_file
from tests.bench.figures import percentiles
from tests.bench.machine import process_cpu_ns, this_machine
from tests.support.training_jobs import profile, records

CONFIGURATIONS: Final = 500
WARM_UP: Final = 10
_PATIENCE_S: Final = 300.0
_PER_TASK: Final = 24
"""Records that `tests.support.training_jobs` makes of one task."""


def data(options: argparse.Namespace, directory: Path) -> tuple[Path, JobFile]:
    """The file that the advisor learns from, and what it holds."""
    path = options.data
    if options.made_up:
        tasks = [f"task{number}" for number in range(-(-options.made_up // _PER_TASK))]
        path = directory / "made-up.parquet"
        write_job_file(path, records(tasks), [profile(task) for task in tasks])
    return path, read_job_file(path)


def question(found: JobFile) -> PredictRequest:
    """500 configurations of the measured machines, about a task that brings its local run along."""
    machines = {one.configuration.instance_type: one.configuration for one in found.records}
    run: RunProfile = found.profiles[0]
    asked = [
        Configuration.model_validate(machine.model_dump() | {"workers": workers, "batch_size": batch})
        for workers in range(1, CONFIGURATIONS)
        for batch in (16, 32, 64, 128)
        for machine in machines.values()
    ]
    task = run.task.model_copy(update={"task": "benchmark"})
    return PredictRequest(task=task, profile=run, configurations=tuple(asked[:CONFIGURATIONS]))


async def first_answer(bus: NatsBus, request: PredictRequest) -> PredictReply:
    """Wait until a model is there."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            reply = await bus.request(ADVISOR_PREDICT.template.subject(bus.root), request, timeout_s=30)
        except BusError as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"no answer within {_PATIENCE_S:g} s: {error}") from error
            await asyncio.sleep(0.5)
            continue
        assert isinstance(reply, PredictReply)
        return reply


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Start everything, ask, stop everything."""
    with tempfile.TemporaryDirectory() as directory:
        path, found = data(options, Path(directory))
        async with EmbeddedNats() as server:
            environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "TURNBUCKLE_"))},
                "TURNBUCKLE_NATS_URL": server.url,
                "TURNBUCKLE_ADVISOR__DATASETS": str(path),
                "TURNBUCKLE_ADVISOR__ALGORITHM": options.algorithm,
                "TURNBUCKLE_ADVISOR__RETRAIN_DEBOUNCE_S": "0",
            }
            advisor = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
                [sys.executable, "-m", "services.advisor"], env=environment, stderr=subprocess.DEVNULL
            )
            try:
                return await ask_often(server.url, advisor.pid, question(found), options)
            finally:
                advisor.kill()
                advisor.wait()


async def ask_often(url: str, pid: int, request: PredictRequest, options: argparse.Namespace) -> dict[str, Any]:
    bus = await NatsBus.connect(BusOptions(servers=(url,), connect_deadline_s=10.0))
    try:
        began_s = time.monotonic()
        first = await first_answer(bus, request)
        ready_s = time.monotonic() - began_s
        took_ms: list[float] = []
        cpu_ns = process_cpu_ns(pid)
        for turn in range(WARM_UP + options.count):
            if turn == WARM_UP:
                cpu_ns = process_cpu_ns(pid)
            asked_s = time.perf_counter()
            await bus.request(ADVISOR_PREDICT.template.subject(bus.root), request, timeout_s=30)
            if turn >= WARM_UP:
                took_ms.append((time.perf_counter() - asked_s) * 1e3)
        own_ms = (process_cpu_ns(pid) - cpu_ns) / 1e6 / options.count
    finally:
        await bus.close(2.0)
    return {
        "algorithm": options.algorithm,
        "records": first.model.records,
        "tasks": first.model.tasks,
        "configurations": len(first.predictions),
        "questions": options.count,
        "latency_ms": percentiles(took_ms),
        "advisor_cpu_ms_per_question": own_ms,
        "first_answer_s": ready_s,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    shipped = shipped_file()
    parser.add_argument("--data", type=Path, default=shipped, help="Parquet file of records (default: %(default)s)")
    parser.add_argument("--made-up", type=int, default=0, metavar="N", help="made-up records instead")
    parser.add_argument("--algorithm", default="gp")
    parser.add_argument("--count", type=int, default=200, help="questions (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    machine = this_machine()
    result = asyncio.run(measure(options))
    latency = result["latency_ms"]
    print(machine.line)
    print(
        f"{result['algorithm']}, {result['records']} records of {result['tasks']} tasks: predict of "
        f"{result['configurations']} configurations, {result['questions']} times: "
        f"p50 {latency['p50']:.0f} ms, p99 {latency['p99']:.0f} ms, max {latency['max']:.0f} ms; "
        f"{result['advisor_cpu_ms_per_question']:.0f} ms of CPU each; "
        f"first answer after {result['first_answer_s']:.1f} s"
    )
    if options.json:
        options.json.write_text(json.dumps({"machine": machine.as_dict(), **result}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
