"""The Application Deployer (thesis 2.4.1): an application's containers through the Docker Engine API.

The plan follows from the file and from what exists alone, so that applying the same file twice changes nothing:

* a container with the same name and the same specification is kept (and started, if it has stopped);
* one whose specification has changed is replaced;
* one that the file no longer names is surplus: it is removed only when asked (``--prune``).

Limits are no part of the specification: they are the allocator's to change at any moment.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from schemas.apps import AppSpec
from services._runtime.command.errors import BadFileError
from services.cli.apps.app_file import AppFile, ContainerTemplate, Instance

APP_LABEL: Final = "turnbuckle.app"
NAME_LABEL: Final = "turnbuckle.name"
HASH_LABEL: Final = "turnbuckle.spec-hash"
"""Only containers with this label were made by `turnbuckle apply`; no others are ever touched."""
DOCKER_MIN_MEMORY_BYTES: Final = 6 << 20
"""The Docker Engine refuses a smaller memory limit."""


class Action(StrEnum):
    """What is done about one container."""

    CREATE = "create"
    REPLACE = "replace"
    START = "start"
    KEEP = "keep"
    REMOVE = "remove"
    LEAVE = "leave"
    """Surplus, but ``--prune`` was not given."""


@dataclass(frozen=True, slots=True)
class ExistingContainer:
    """A container of the application that `turnbuckle apply` has made before."""

    container_id: str
    name: str
    spec_hash: str
    running: bool


@dataclass(frozen=True, slots=True)
class InitialLimits:
    """Limits that a container starts with."""

    quota_us: int
    memory_bytes: int

    @classmethod
    def of(cls, spec: AppSpec, containers: int) -> InitialLimits:
        """Equations 2.1 and 2.2 for an application of this many containers."""
        return cls(spec.initial_quota_us(containers), spec.initial_memory_bytes(containers))


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the plan."""

    action: Action
    name: str
    reason: str
    template: ContainerTemplate | None = None
    """What to create; None where nothing is created."""
    existing_id: str | None = None
    """What to start, replace, remove or leave."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in order, and the limits that new containers get."""

    spec: AppSpec
    limits: InitialLimits
    steps: tuple[Step, ...]


def plan_deployment(app_file: AppFile, existing: Iterable[ExistingContainer], *, prune: bool) -> Plan:
    """What has to be done so that the containers of the file run.

    Raises:
        BadFileError: the initial memory limit would be below what the Docker Engine accepts.
    """
    instances = app_file.instances
    limits = InitialLimits.of(app_file, max(1, len(instances)))
    if instances and limits.memory_bytes < DOCKER_MIN_MEMORY_BYTES:
        raise BadFileError(
            f"memory_limit: {len(instances)} containers would start with {limits.memory_bytes} bytes each "
            f"(memory_limit x (1 - sigma) / {len(instances)}); Docker needs at least {DOCKER_MIN_MEMORY_BYTES}"
        )
    by_name = {container.name: container for container in existing}
    steps = [_plan_instance(instance, by_name.pop(instance.name, None)) for instance in instances]
    surplus = Action.REMOVE if prune else Action.LEAVE
    reason = "not in the file" if prune else "not in the file; --prune removes it"
    steps += [Step(surplus, name, reason, existing_id=found.container_id) for name, found in sorted(by_name.items())]
    return Plan(app_file.spec, limits, tuple(steps))


def _plan_instance(instance: Instance, found: ExistingContainer | None) -> Step:
    name, template = instance
    if found is None:
        return Step(Action.CREATE, name, "not there yet", template)
    if found.spec_hash != hash_template(template):
        return Step(Action.REPLACE, name, "its specification has changed", template, found.container_id)
    if not found.running:
        return Step(Action.START, name, "it has stopped", None, found.container_id)
    return Step(Action.KEEP, name, "it runs as specified", None, found.container_id)


def hash_template(template: ContainerTemplate) -> str:
    """A short digest of everything in a template that makes two containers different."""
    fields = template.model_dump(mode="json", exclude={"name", "replicas"})
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]
