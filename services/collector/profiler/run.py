"""A local run: ``python -m services.collector.profiler.run [options] -- CMD...``, for `turnbuckle profile`.

Standard output has one JSON object a line:

- ``started``: run, directory of the logs, workers with name, address, process id
- ``sample``: elapsed_s, limit_s, workers with the four values of the last interval
- ``stopping``: why
- ``row``: a worker with its means, at the end
- ``result``: run, the profile's file, end, samples, duration_s, exit_codes, throughput, rate, whole_run, speed,
  published, progress (pace, why, candidates), contention (what other work took)
- ``error``: message, exit_code, kind; of a worker that died also worker, worker_exit_code, stderr_tail

Exit codes: 0; 2 a wrong command line; 65 the command failed, or ran for less than ten samples; 69 no root, no control
groups; 130 interrupted (the profile is kept if it has ten samples).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from schemas.codec import to_plain
from schemas.runs import SERIES, MachineSpeed, RunEnd, RunProfile, WorkerSeries
from services._host.calibration import calibrate, speed_sentence
from services._jobs.sandbox.sandbox import Sandboxes, SandboxUnavailableError
from services._runtime.atomic_file import write_atomically
from services._runtime.bus.api import Bus, BusError
from services._runtime.bus.nats import NatsBus
from services._runtime.command.errors import UnavailableError, UsageError
from services._runtime.command.tool_events import emit, emit_error, say
from services._runtime.exit_code import ExitCode
from services.collector.profiler.options import LocalRunPlan, parse
from services.collector.profiler.rate import Rate, rate_of, rate_sentence, whole_run_of
from services.collector.profiler.recording import LocalRun
from services.collector.profiler.series import MIN_SAMPLES
from services.collector.profiler.throughput import throughput
from services.collector.profiler.workers import Launch, LocalWorkers, Worker
from services.collector.publishing import Publisher
from services.collector.settings import CollectorSettings
from services.collector.tool import BadDataError, run_tool
from services.collector.write_ahead_log import Journal

CONNECT_S: Final = 3.0
CLOSE_S: Final = 5.0


def store(plan: LocalRunPlan, journal: Journal, profile: RunProfile) -> Path:
    """Write the profile to the journal, and as a file of its own for those who want one."""
    journal.append(profile)
    path = plan.out.absolute() / "profiles" / f"{plan.run}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(to_plain(profile), allow_nan=False))
    return path


async def connect(plan: LocalRunPlan) -> NatsBus | None:
    """The bus; None where there is none: the journal keeps the profile until a later start finds one."""
    if not plan.use_bus:
        return None
    options = replace(CollectorSettings.load().bus_options(), connect_deadline_s=CONNECT_S, name="turnbuckle-local-run")
    try:
        return await NatsBus.connect(options)
    except BusError as error:
        say(f"no bus: {error}; the profile stays in the journal and is published by a later run")
        return None


async def publish(journal: Journal, bus: Bus | None) -> bool:
    """Publish what the journal holds and the bus does not; whether it has everything now."""
    if bus is None:
        return False
    try:
        await Publisher(journal, bus).publish()
    except BusError as error:
        say(f"not published: {error}; the journal keeps it for a later run")
        return False
    return True


async def profile_command(plan: LocalRunPlan) -> int:
    """The whole tool."""
    if os.geteuid() != 0:
        raise UnavailableError(
            f"a local run needs root for control groups and network namespaces, this is uid {os.geteuid()}: "
            "use sudo -E env PATH=$PATH, or run it in a privileged container"
        )
    with Journal(plan.out) as journal:
        if f"run:{plan.run}" in journal:  # published once under a name: a second profile would not be told
            raise UsageError(f"{plan.out} holds a run {plan.run} already: give this one another --run, or none")
        bus = await connect(plan)
        try:
            await publish(journal, bus)
            speed = await _speed(plan)
            run = await _run(plan, bus, speed)
            return await finish(plan, run, journal, bus)
        finally:
            if bus is not None:
                await bus.close(CLOSE_S)


async def _speed(plan: LocalRunPlan) -> MachineSpeed | None:
    """Measure this machine before the run, with which it would compete."""
    if not plan.calibrate:
        return None
    speed = await asyncio.to_thread(calibrate, plan.out)
    say("this machine could not be calibrated" if speed is None else speed_sentence(speed))
    return speed


async def _run(plan: LocalRunPlan, bus: Bus | None, speed: MachineSpeed | None) -> LocalRun:
    launch = Launch(plan.argv, plan.workers, plan.limits, plan.master_port, plan.logs)
    try:
        with Sandboxes() as sandboxes:
            if sandboxes.swept:
                say(f"removed what {len(sandboxes.swept)} killed run(s) had left")
            run = LocalRun(plan, LocalWorkers(sandboxes, launch), bus, speed)
            await run.live()
            return run
    except SandboxUnavailableError as error:
        raise UnavailableError(str(error)) from error
    except FileNotFoundError as error:
        raise UsageError(f"{error.filename}: no such program") from error
    except PermissionError as error:
        raise UsageError(f"{error.filename}: not executable") from error


async def finish(plan: LocalRunPlan, run: LocalRun, journal: Journal, bus: Bus | None) -> int:
    """Keep the profile of a run that has ended, and say what it shows; returns the exit code."""
    profile = run.profile()
    samples = profile.workers[0].samples
    if samples < MIN_SAMPLES:
        return _refuse(run, profile, samples)
    path = store(plan, journal, profile)
    published = await publish(journal, bus)
    for worker in profile.workers:
        emit("row", **_row(worker))
    choice = run.choice
    rate = rate_of(profile, choice.pace)
    emit("result", **_result(profile, rate), progress=asdict(choice), profile=str(path), published=published)
    say(rate_sentence(profile, rate, choice))
    if profile.contention is not None and profile.contention.is_high:
        say(f"{profile.contention.summary}: durations here are those of a busy machine: profile again on a quiet one")
    if run.dead_worker is not None:
        return _emit_death(run.dead_worker, profile.reason)
    return ExitCode.INTERRUPTED if run.end is RunEnd.INTERRUPTED else ExitCode.OK


def _refuse(run: LocalRun, profile: RunProfile, samples: int) -> int:
    """Reject a profile with too few samples, with the reason."""
    few = f"{samples} samples of {profile.interval_s:g} s are no profile, {MIN_SAMPLES} are the least"
    if run.dead_worker is not None:
        return _emit_death(run.dead_worker, f"{profile.reason} after {profile.duration_s:.1f} s: {few}")
    if run.end is RunEnd.INTERRUPTED:
        say(f"interrupted after {profile.duration_s:.1f} s: {few}")
        return emit_error(f"interrupted: {few}", ExitCode.INTERRUPTED)
    raise BadDataError(
        f"the run ended after {profile.duration_s:.1f} s: {few}. Let it train longer, or sample more often (--interval)"
    )


def _row(worker: WorkerSeries) -> dict[str, Any]:
    """A worker's means, as people read them."""
    cores, memory, arrived, sent = (float(worker.column(name).mean()) for name in SERIES)
    return {
        "worker": worker.worker,
        "cpu_cores": round(cores, 3),
        "memory_mb": round(memory / 1e6, 1),
        "network_in_mb_per_s": round(arrived / 1e6, 3),
        "network_out_mb_per_s": round(sent / 1e6, 3),
    }


def _result(profile: RunProfile, rate: Rate | None) -> dict[str, Any]:
    by_bytes = throughput(profile)
    whole, found = whole_run_of(profile, rate), profile.contention
    return {
        "run": profile.run,
        "end": profile.end.value,
        "samples": profile.workers[0].samples,
        "duration_s": profile.duration_s,
        "exit_codes": profile.exit_codes,
        "reason": profile.reason,
        "throughput": None if by_bytes is None else asdict(by_bytes),
        "rate": None if rate is None else asdict(rate),
        "whole_run": None if whole is None else asdict(whole),
        "speed": None if profile.speed is None else profile.speed.model_dump(mode="json"),
        "contention": None
        if found is None
        else {**to_plain(found), "lost_share": found.lost_share, "high": found.is_high},
    }


def _emit_death(worker: Worker, message: str) -> int:
    """Emit a failed worker's exit code, and the end of its standard error."""
    lines = worker.stderr_tail()
    say(f"{message}; the end of its standard error ({worker.stderr}):")
    for line in lines or ["(nothing)"]:
        say(f"  {line}")
    details = {"worker": worker.name, "worker_exit_code": worker.exit_code, "stderr_tail": lines}
    return emit_error(message, ExitCode.BAD_DATA, **details)


def main() -> None:
    """Run the tool."""
    run_tool("local-run", lambda: asyncio.run(profile_command(parse(sys.argv[1:]))))


if __name__ == "__main__":
    main()
