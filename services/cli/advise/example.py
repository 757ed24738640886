"""`turnbuckle advise --example`: trains an advisor on the shipped data set without one task, then queries that task.

The held-out task stands for a job of the user's own: only its features and its local run are known to the advisor. Its
measurements exist, so the answer is compared with them.
"""

from __future__ import annotations

import asyncio
import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from schemas.jobs import JobRecord, JobState
from schemas.predictions import Objective, RankReply, RankRequest
from schemas.runs import RunProfile
from services._jobs.record_files import JobFileError, read_job_file
from services._runtime.bus.embedded_server import EmbeddedNats, NatsServerError
from services._runtime.bus.options import BusOptions
from services._runtime.command.connection import connected
from services._runtime.command.errors import BadFileError, UnavailableError
from services._runtime.command.output import print_note, stderr_console
from services.advisor.commands import held_out_environment, shipped_dataset
from services.cli.advise.job_yaml import SECONDS_PER_HOUR
from services.cli.advise.query import Answer, Measurements, QueryOptions, ask
from services.cli.advise.view import configuration_name
from services.cli.toolkit.supervisor import Supervisor

TRAINING_TIMEOUT_S: Final = 180.0
_LONGER: Final = re.compile(r"-x\d+$")
_PREFERRED: Final = ("image", "vgg", "transformer")


def run_example(task: str | None, query_options: QueryOptions) -> Answer:
    """Start a server and an advisor, wait until it is trained, query it, and stop both.

    Raises:
        BadFileError: no data set is shipped, or the task is not in it.
        UnavailableError: the advisor could not be started, or has no model in time.
    """
    path = shipped_file()
    try:
        found = read_job_file(path)
    except JobFileError as error:
        raise BadFileError(f"the shipped data set cannot be used: {error}") from error
    profile = _select_profile(found.profiles, found.records, task)
    mine = [record for record in found.records if record.task.task == profile.task.task]
    request = _request(profile, query_options, mine)
    print_note(
        f"{path.name}: {len(found.records)} jobs; {profile.task.task} is left out and asked about, "
        f"with its local run of {profile.duration_s:.0f} s"
    )
    others = related_tasks(profile.task.task, {record.task.task for record in found.records})
    return Answer(asyncio.run(_ask(request, path, others)), request.spot, _measurements(mine, request))


def shipped_file() -> Path:
    """The shipped data set.

    Raises:
        BadFileError: there is none.
    """
    if (found := shipped_dataset()) is None:
        raise BadFileError(
            "this installation ships no data set: measure one (turnbuckle emulate) or import one "
            "(turnbuckle jobs import), and ask about a job.yaml"
        )
    return found


def _select_profile(profiles: tuple[RunProfile, ...], records: tuple[JobRecord, ...], task: str | None) -> RunProfile:
    """The local run of the held-out task."""
    counts: defaultdict[str, int] = defaultdict(int)
    used = {record.local_run for record in records}
    for record in records:
        counts[record.task.task] += record.state is JobState.SUCCEEDED
    known = {one.task.task: one for one in profiles if one.run in used or not used - {""}}
    if task is not None:
        if task not in known:
            raise BadFileError(
                f"no task {task!r} with a local run in the data set (there are {', '.join(sorted(known))})"
            )
        return known[task]
    if not known:
        raise BadFileError("the data set holds no local run: name a job.yaml of your own")
    names = sorted(known, key=lambda name: (not any(word in name for word in _PREFERRED), -counts[name], name))
    return known[names[0]]


def related_tasks(task: str, known: Iterable[str]) -> tuple[str, ...]:
    """The task and its variants with more epochs (``image-cnn-x20``): training on these leaks the held-out task."""
    name = _LONGER.sub("", task)
    return tuple(sorted(one for one in {*known, task} if _LONGER.sub("", one) == name))


def _request(profile: RunProfile, query_options: QueryOptions, measured: list[JobRecord]) -> RankRequest:
    """Ranks the measured configurations, so that the answer can be compared with measurements."""
    configurations = {configuration_name(record.configuration): record.configuration for record in measured}
    return RankRequest(
        configurations=tuple(configurations[name] for name in sorted(configurations)),
        task=profile.task,
        profile=profile,
        job="example",
        objective=query_options.objective or Objective.COST,
        budget_usd=query_options.budget_usd,
        deadline_s=query_options.deadline_hours * SECONDS_PER_HOUR if query_options.deadline_hours else None,
        spot=query_options.spot,
        top=query_options.top,
    )


async def _ask(request: RankRequest, path: Path, left_out: tuple[str, ...]) -> RankReply:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnbuckle-advise-")))
        try:
            nats = await stack.enter_async_context(EmbeddedNats())
        except NatsServerError as error:
            raise UnavailableError(str(error)) from error
        supervisor = Supervisor(directory, nats.url)
        stack.push_async_callback(supervisor.stop_all)
        environment = held_out_environment(path, left_out)
        with stderr_console().status("starting NATS and the advisor"):
            await supervisor.start("advisor", environment)
            bus = await stack.enter_async_context(connected(BusOptions(servers=(nats.url,))))
        with stderr_console().status("training on all other tasks"):
            asking = asyncio.ensure_future(ask(bus, request, training_timeout_s=TRAINING_TIMEOUT_S))
            while not asking.done():
                supervisor.check()
                await asyncio.wait({asking}, timeout=0.5)
        return asking.result()


def _measurements(records: list[JobRecord], request: RankRequest) -> Measurements:
    """Geometric means over the repeats that succeeded."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    costs: defaultdict[str, list[float]] = defaultdict(list)
    for record in records:
        if record.state is not JobState.SUCCEEDED or record.duration_s is None:
            continue
        where = record.configuration
        name = configuration_name(where)
        times[name].append(record.duration_s)
        if record.price is not None:
            costs[name].append(record.price.usd_per_hour * where.workers * record.duration_s / SECONDS_PER_HOUR)
    return Measurements(
        request.task.task,
        request.objective,
        {name: _mean(values) for name, values in times.items()},
        {name: _mean(values) for name, values in costs.items()},
    )


def _mean(values: list[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values)) if min(values) > 0 else min(values)
