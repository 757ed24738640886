"""The advisor query built from job.yaml and command-line options, and its answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from schemas.predictions import Objective, RankReply, RankRequest
from schemas.services.advisor import ADVISOR_RANK
from services._runtime.command.errors import CommandError, UnavailableError

if TYPE_CHECKING:
    from services._runtime.bus.api import Bus
    from services.cli.advise.job_yaml import JobYaml

REPLY_TIMEOUT_S: Final = 30.0
_RETRY_INTERVAL_S: Final = 0.3
_TRAINING: Final = 503


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """Command-line options; they override job.yaml."""

    profile: str | None = None
    budget_usd: float | None = None
    deadline_hours: float | None = None
    spot: bool = False
    objective: Objective | None = None
    top: int = 10
    providers: tuple[str, ...] = ()
    shipped_data: bool = False
    price_sources: tuple[str, ...] = ()
    accelerator_data: bool = False


@dataclass(frozen=True, slots=True)
class Measurements:
    """Of the held-out task: seconds and dollars by configuration, see `configuration_name`."""

    task: str
    objective: Objective
    time_s: dict[str, float]
    cost_usd: dict[str, float]

    @property
    def values(self) -> dict[str, float]:
        """The values of the objective."""
        return self.cost_usd if self.objective is Objective.COST else self.time_s


@dataclass(frozen=True, slots=True)
class Answer:
    """The advisor's reply, and in the example the measured values."""

    reply: RankReply
    spot: bool = False
    """Whether the query was for spot machines."""
    measured: Measurements | None = None


def request_for(file: JobYaml, query_options: QueryOptions, directory: Path) -> RankRequest:
    """The request that a job.yaml and the options make together.

    Raises:
        BadFileError: the local run's file is none.
    """
    from schemas.jobs import Configuration, TaskFeatures  # noqa: PLC0415 - quick --help
    from services._jobs.task_yaml import load_profile  # noqa: PLC0415 - as above
    from services.cli.advise.job_yaml import SECONDS_PER_HOUR  # noqa: PLC0415 - as above

    name = query_options.profile or file.profile
    path = Path(name) if query_options.profile else directory / name
    is_file = bool(name) and (path.is_file() or path.suffix == ".json")
    deadline = query_options.deadline_hours or file.deadline_hours
    return RankRequest(
        task=TaskFeatures.model_validate(file.task.model_dump()),
        configurations=tuple(Configuration.model_validate(one.model_dump()) for one in file.configurations),
        workers=file.workers,
        batch_sizes=file.batch_sizes,
        profile=load_profile(path) if is_file else None,
        run="" if is_file else name,
        job=file.name,
        prices_as_of=file.prices_as_of,
        price_sources=query_options.price_sources or file.price_sources,
        objective=query_options.objective or file.objective,
        budget_usd=query_options.budget_usd or file.budget_usd,
        deadline_s=deadline * SECONDS_PER_HOUR if deadline else None,
        spot=query_options.spot or file.spot,
        top=query_options.top,
        providers=query_options.providers or file.providers,
        shipped_data=query_options.shipped_data,
        accelerator_data=query_options.accelerator_data,
    )


async def ask(bus: Bus, request: RankRequest, *, training_timeout_s: float) -> RankReply:
    """Query the advisor; retries for at most ``training_timeout_s`` while it trains its first model.

    Raises:
        UnavailableError: no reply in time, or no model.
        CommandError: the advisor rejects the request; holds its reason.
    """
    from services._runtime.bus.api import (  # noqa: PLC0415 - quick --help
        NoResponderError,
        RequestRefusedError,
        RequestTimeoutError,
    )

    retry_until_s = asyncio.get_running_loop().time() + training_timeout_s
    while True:
        try:
            reply = await bus.request(ADVISOR_RANK.template.subject(bus.root), request, timeout_s=REPLY_TIMEOUT_S)
        except NoResponderError as error:
            raise UnavailableError("no advisor answers: start one: turnbuckle run advisor") from error
        except RequestTimeoutError as error:
            raise UnavailableError(f"the advisor did not answer within {REPLY_TIMEOUT_S:g} s") from error
        except RequestRefusedError as error:
            if error.code != _TRAINING:
                raise CommandError(str(error)) from error
            if asyncio.get_running_loop().time() >= retry_until_s:
                raise UnavailableError(str(error)) from error
            await asyncio.sleep(_RETRY_INTERVAL_S)
            continue
        if not isinstance(reply, RankReply):
            raise CommandError(f"the advisor answered with {reply.type_name}: are the versions the same?")
        return reply
