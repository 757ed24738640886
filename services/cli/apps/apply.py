"""`turnbuckle apply app.yaml`: announce limits, then create containers."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from schemas.apps import AppSpec
from schemas.streams import APPS
from services._runtime.bus.api import Bus
from services._runtime.bus.options import BusOptions
from services._runtime.command.connection import ContextOption, ServerOption, connected, find_server
from services._runtime.command.errors import UnavailableError
from services._runtime.command.nodes import read_nodes
from services._runtime.command.output import (
    format_bytes,
    format_cores,
    format_size,
    print_json,
    print_note,
    print_warning,
)
from services.cli.apps.announced import read_apps
from services.cli.apps.app_file import AppFile, load_app_file
from services.cli.apps.capacity import capacity_warnings
from services.cli.apps.deployer import Action, Plan, Step, plan_deployment
from services.cli.apps.step_output import plain_step, print_step

DRY_RUN_CONNECT_S: Final = 0.5
EXAMPLES = """
Examples:

  turnbuckle apply app.yaml

  turnbuckle apply app.yaml --dry-run

  turnbuckle apply app.yaml --limits-only     (containers labelled turnbuckle.app=NAME join by themselves)
"""


def apply_command(  # noqa: PLR0913 - a command's options are its parameters
    file: Annotated[Path, typer.Argument(help="The application's file.", metavar="APP.YAML")],
    *,
    limits_only: Annotated[bool, typer.Option("--limits-only", help="Announce the limits, create nothing.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Remove containers that the file no longer names.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Dry run: print what would be done.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Announce an application's limits and create its containers, with their first limits.

    Applying again changes only what differs: containers that run as specified are kept. Limits beyond what the
    registered nodes have, alone or together with other applications, are told with figures.
    """
    app_file = load_app_file(file)
    outcome = _new_outcome(app_file, dry_run=dry_run)
    options = find_server(server, context)
    if dry_run:
        outcome["warnings"] = asyncio.run(_dry_run_warnings(app_file, options))
    else:
        outcome["revision"], outcome["warnings"] = asyncio.run(_announce(app_file, options))
    print_note(_describe_limits(app_file, dry_run=dry_run))
    for warning in outcome["warnings"]:
        print_warning(warning)
    if app_file.containers and not limits_only:
        _deploy(app_file, outcome, prune=prune)
    if as_json:
        print_json(outcome)


def _new_outcome(app_file: AppFile, *, dry_run: bool) -> dict[str, Any]:
    return {"app": app_file.name, "dry_run": dry_run, "revision": None, "warnings": [], "containers": [], "others": []}


async def _announce(app_file: AppFile, options: BusOptions) -> tuple[int, list[str]]:
    async with connected(options) as bus:
        warnings = await _warnings(bus, app_file.spec)
        return await bus.bucket(APPS).put(app_file.name, app_file.spec), warnings


async def _dry_run_warnings(app_file: AppFile, options: BusOptions) -> list[str]:
    """The same for a dry run: nothing is made on the server, and without one nothing is said of the nodes."""
    only_reads = dataclasses.replace(options, streams=(), buckets=(), object_stores=())
    try:
        async with connected(only_reads, within_s=DRY_RUN_CONNECT_S) as bus:
            return await _warnings(bus, app_file.spec)
    except UnavailableError as error:
        print_note(f"not compared with what the nodes have: {error}")
        return []


async def _warnings(bus: Bus, spec: AppSpec) -> list[str]:
    return capacity_warnings(spec, await read_apps(bus), await read_nodes(bus))


def _describe_limits(app_file: AppFile, *, dry_run: bool) -> str:
    verb = "would be" if dry_run else "are"
    return (
        f"{app_file.name}: {app_file.cpu_limit:g} cores and {format_size(int(app_file.memory_limit))} {verb} announced"
        f" (policy {app_file.policy}, mode {app_file.mode})"
    )


def _deploy(app_file: AppFile, outcome: dict[str, Any], *, prune: bool) -> None:
    from services.cli.apps.docker_deployment import DockerDeployment  # noqa: PLC0415 - only here is the SDK needed

    dry_run = outcome["dry_run"]

    def done(step: Step, container_id: str | None) -> None:
        outcome["containers"].append(plain_step(step, container_id))
        print_step(step)

    try:
        with DockerDeployment.connect() as deployment:
            plan = plan_deployment(app_file, deployment.existing(app_file.name), prune=prune)
            outcome["others"] = deployment.foreign(app_file.name)
            if dry_run:
                for step in plan.steps:
                    done(step, step.existing_id)
            else:
                deployment.carry_out(plan, done)
    except UnavailableError as error:
        announced = "" if dry_run else "The limits are announced, but no container was created: "
        raise UnavailableError(f"{announced}{error}") from error
    _print_summary(plan, outcome["others"])


def _print_summary(plan: Plan, others: list[str]) -> None:
    if any(step.action in {Action.CREATE, Action.REPLACE} for step in plan.steps):
        print_note(
            f"new containers start with {format_cores(plan.limits.quota_us)} cores "
            f"and {format_bytes(plan.limits.memory_bytes)} each"
        )
    if others:
        print_note(f"made by others and left alone: {', '.join(others)}")
