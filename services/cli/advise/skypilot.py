"""The first choice as a SkyPilot task: SkyPilot does not predict times, so the task names the machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

from schemas.jobs import Configuration
from services._runtime.command.errors import CommandError
from services.cli.advise.view import dollars, price_of, seconds

if TYPE_CHECKING:
    from services.cli.advise.job_yaml import JobYaml
    from services.cli.advise.query import Answer

CLOUDS: Final = frozenset({"aws", "azure", "gcp", "ibm", "lambda", "nebius", "oci"})


def task_yaml(answer: Answer, file: JobYaml | None) -> str:
    """The text of a SkyPilot task for the first choice.

    Raises:
        CommandError: nothing that SkyPilot can rent was ranked.
    """
    reply = answer.reply
    one = next((each for each in reply.ranked if each.configuration.provider in CLOUDS), None)
    if one is None:
        provider = reply.ranked[0].configuration.provider if reply.ranked else ""
        raise CommandError(f"SkyPilot cannot rent machines of {provider or 'an unknown provider'}: nothing is written")
    where = one.configuration
    cost = price_of(one, answer)
    lines = [
        f"# {where.workers} x {where.instance_type}: {seconds(one.time_s.median)} "
        f"({seconds(one.time_s.low)} to {seconds(one.time_s.high)} with {reply.level:.0%})"
        + (f", {dollars(cost.median)}" if cost is not None else ""),
        f"# predicted by {reply.model.version} with prices of {reply.prices_as_of}",
        f"# time_estimator: sky.Task.set_time_estimator(lambda _: {one.time_s.median:.0f})",
    ]
    return "\n".join(lines) + "\n" + yaml.safe_dump(_task(where, file, spot=answer.spot), sort_keys=False)


def _task(where: Configuration, file: JobYaml | None, *, spot: bool) -> dict[str, Any]:
    task: dict[str, Any] = {}
    if file is not None and file.name:
        task["name"] = file.name
    task["num_nodes"] = where.workers
    task["resources"] = {"infra": where.provider, "instance_type": where.instance_type, "use_spot": spot}
    if where.disk_gb:
        task["resources"]["disk_size"] = round(where.disk_gb)
    if where.batch_size:
        task["envs"] = {"BATCH_SIZE": str(where.batch_size)}
    if file is not None and file.setup:
        task["setup"] = file.setup
    task["run"] = file.run if file is not None and file.run else "echo 'put the training command into job.yaml: run'\n"
    return task
