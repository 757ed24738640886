"""`turnbuckle delete APP`: remove an application's containers and withdraw its limits."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from schemas.streams import APPS
from services._runtime.command.connection import ContextOption, ServerOption, connected, find_server
from services._runtime.command.errors import CommandError, UnavailableError
from services._runtime.command.output import print_json, print_note
from services.cli.apps.deployer import Step
from services.cli.apps.step_output import plain_step, print_step

EXAMPLES = """
Examples:

  turnbuckle delete shop

  turnbuckle delete shop --yes --json
"""


def delete_command(
    app: Annotated[str, typer.Argument(help="Name of the application.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON; needs --yes.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Remove the containers that `turnbuckle apply` made for APP, then withdraw APP's limits.

    Containers that others have made go on with the limits that they have now.
    """
    if as_json and not yes:
        raise typer.BadParameter("--json cannot prompt, so it needs --yes")
    if not yes and not typer.confirm(f"Remove application {app}, its containers and its limits?", err=True):
        raise CommandError("nothing was removed")
    outcome: dict[str, Any] = {"app": app, "announced": False, "containers": [], "others": []}
    options = find_server(server, context)
    asyncio.run(_check_announced(app, options, outcome))
    _remove_containers(app, outcome)
    asyncio.run(_withdraw(app, options))
    if not outcome["announced"] and not outcome["containers"]:
        raise CommandError(f"there is no application {app!r}; `turnbuckle apps` lists them")
    print_note(f"{app} is removed")
    if as_json:
        print_json(outcome)


async def _check_announced(app: str, options: Any, outcome: dict[str, Any]) -> None:
    async with connected(options) as bus:
        outcome["announced"] = await bus.bucket(APPS).get(app) is not None


async def _withdraw(app: str, options: Any) -> None:
    async with connected(options) as bus:
        await bus.bucket(APPS).delete(app)


def _remove_containers(app: str, outcome: dict[str, Any]) -> None:
    from services.cli.apps.docker_deployment import DockerDeployment  # noqa: PLC0415 - only here is the SDK needed

    def done(step: Step, _container_id: str | None) -> None:
        outcome["containers"].append(plain_step(step, step.existing_id))
        print_step(step)

    try:
        with DockerDeployment.connect() as deployment:
            deployment.remove(app, done)
            outcome["others"] = deployment.foreign(app)
    except UnavailableError:
        print_note("no Docker Engine answers here: no containers were searched for")
