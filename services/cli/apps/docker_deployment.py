"""Carries a deployment plan out through the Docker Engine API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import docker
import requests
from docker.errors import APIError, ImageNotFound, NotFound
from docker.models.containers import Container

from schemas.apps import PERIOD_US
from services._runtime.command.errors import CommandError, UnavailableError
from services._runtime.command.finding import Finding, Level
from services.cli.apps.app_file import PORT_PATTERN, ContainerTemplate
from services.cli.apps.deployer import (
    APP_LABEL,
    HASH_LABEL,
    NAME_LABEL,
    Action,
    ExistingContainer,
    InitialLimits,
    Plan,
    Step,
    hash_template,
)
from services.cli.apps.docker_engine import FAILURES, first_line, open_engine

STOP_GRACE_S: Final = 10
_EXEC_HINT: Final = "turnbuckle exec --app APP --name NAME -- CMD"
_INSTALL: Final = "apt-get install docker.io && systemctl start docker"
_BUILT_IN_NETWORKS: Final = frozenset({"bridge", "host", "none"})

Progress = Callable[[Step, str | None], None]
"""Called after each step with the id of the container that now exists, or None."""


class DockerDeployment:
    """The containers of one Docker Engine. Use as a context manager.

    Raises:
        UnavailableError: no Docker Engine answers (at entry, or later).
        CommandError: the engine refuses a step; the message says which and why.
    """

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client

    @classmethod
    @contextmanager
    def connect(cls) -> Iterator[DockerDeployment]:
        """Connect as the ``docker`` command would: ``DOCKER_HOST`` or the local socket."""
        try:
            client = open_engine()
        except UnavailableError as error:
            raise UnavailableError(f"{error}. Without Docker, plain processes can run: {_EXEC_HINT}") from error
        try:
            yield cls(client)
        except requests.exceptions.RequestException as error:
            raise UnavailableError(f"the Docker Engine stopped answering: {first_line(error)}") from error
        finally:
            client.close()

    def existing(self, app: str) -> list[ExistingContainer]:
        """The application's containers that `turnbuckle apply` has made, running or not."""
        return [
            ExistingContainer(
                container_id=str(container.id),
                name=container.labels.get(NAME_LABEL, ""),
                spec_hash=container.labels[HASH_LABEL],
                running=container.status in {"running", "restarting", "paused"},
            )
            for container in self._list(app)
            if HASH_LABEL in container.labels
        ]

    def foreign(self, app: str) -> list[str]:
        """Names of the application's containers that were created by other means."""
        return sorted(str(found.name) for found in self._list(app) if HASH_LABEL not in found.labels)

    def carry_out(self, plan: Plan, progress: Progress) -> None:
        """Do the plan's steps in order; stops at the first that fails. Doing the rest is applying again."""
        for step in plan.steps:
            with _explain(step):
                progress(step, self._do(plan, step))

    def remove(self, app: str, progress: Progress) -> None:
        """Stop and remove the application's containers and the networks that were made for them."""
        for found in self.existing(app):
            step = Step(Action.REMOVE, found.name, "the application is deleted", None, found.container_id)
            with _explain(step):
                self._remove(found.container_id)
            progress(step, None)
        for network in self._client.networks.list(filters={"label": f"{APP_LABEL}={app}"}):
            with _explain(Step(Action.REMOVE, f"network {network.name}", "")):
                network.remove()

    def _list(self, app: str) -> list[Container]:
        found = self._client.containers.list(all=True, ignore_removed=True, filters={"label": f"{APP_LABEL}={app}"})
        return sorted(found, key=lambda container: str(container.name))

    def _do(self, plan: Plan, step: Step) -> str | None:
        if step.existing_id is not None and step.action in {Action.REPLACE, Action.REMOVE}:
            self._remove(step.existing_id)
        if step.existing_id is not None and step.action is Action.START:
            self._client.containers.get(step.existing_id).start()
        if step.template is None:
            return None if step.action is Action.REMOVE else step.existing_id
        return self._create(plan, step.name, step.template)

    def _remove(self, container_id: str) -> None:
        try:
            container = self._client.containers.get(container_id)
            container.stop(timeout=STOP_GRACE_S)
            container.remove(force=True, v=True)
        except NotFound:
            return

    def _create(self, plan: Plan, name: str, template: ContainerTemplate) -> str:
        self._provide_image(template.image)
        options = container_options(plan.spec.name, name, template, plan.limits)
        if template.network is not None:
            self._provide_network(template.network, plan.spec.name)
        container = self._client.containers.create(template.image, **options)
        try:
            container.start()
        except APIError:
            container.remove(force=True)
            raise
        return str(container.id)

    def _provide_image(self, image: str) -> None:
        try:
            self._client.images.get(image)
        except ImageNotFound:
            self._client.images.pull(image)

    def _provide_network(self, network: str, app: str) -> None:
        if network in _BUILT_IN_NETWORKS or self._client.networks.list(names=[network]):
            return
        self._client.networks.create(network, driver="bridge", check_duplicate=True, labels={APP_LABEL: app})


def container_options(app: str, name: str, template: ContainerTemplate, limits: InitialLimits) -> dict[str, Any]:
    """Arguments of ``docker.containers.create``: labels, limits of eq. 2.1 and 2.2, and what the file asks for.

    memswap equals memory, so that a container that reaches its limit does not start to swap instead.
    """
    options: dict[str, Any] = {
        "name": f"{app}-{name}",
        "hostname": None if template.network == "host" else name,
        "environment": template.environment,
        "labels": {**template.labels, APP_LABEL: app, NAME_LABEL: name, HASH_LABEL: hash_template(template)},
        "volumes": list(template.volumes),
        "ports": docker_ports(template.ports),
        "restart_policy": {"Name": template.restart},
        "cpu_period": PERIOD_US,
        "cpu_quota": limits.quota_us,
        "mem_limit": limits.memory_bytes,
        "memswap_limit": limits.memory_bytes,
        "detach": True,
    }
    if template.command is not None:
        options["command"] = list(template.command)
    if template.network is not None:
        options["network"] = template.network
    return options


def docker_ports(ports: tuple[str, ...]) -> dict[str, Any]:
    """``8080:80`` and its relatives as the SDK wants them: ``{"80/tcp": 8080}``; no host port: the engine chooses."""
    bindings: dict[str, list[Any]] = {}
    for port in ports:
        match = PORT_PATTERN.match(port)
        assert match, "checked by the model"
        host = int(match["host"]) if match["host"] else None
        target = f"{match['container']}/{match['protocol'] or 'tcp'}"
        address = match["address"].strip("[]") if match["address"] else None
        binding = host if address is None else (address,) if host is None else (address, host)
        bindings.setdefault(target, []).append(binding)
    return {target: hosts[0] if len(hosts) == 1 else hosts for target, hosts in bindings.items()}


@contextmanager
def _explain(step: Step) -> Iterator[None]:
    try:
        yield
    except APIError as error:
        said = error.explanation or str(error)
        raise CommandError(f"{step.name}: Docker refuses to {step.action} it: {said}") from error


def _remedy(error: UnavailableError) -> str:
    return "sudo turnbuckle doctor" if isinstance(error.__cause__, PermissionError) else _INSTALL


def check_docker() -> Finding:
    """The Docker Engine's version and cgroup driver, for `turnbuckle doctor`."""
    try:
        client = open_engine(10)
    except UnavailableError as error:
        return Finding("docker", Level.MISSING, f"{error}; `turnbuckle exec` works without", _remedy(error))
    try:
        info = client.info()
    except FAILURES as error:
        return Finding("docker", Level.MISSING, f"the Engine does not answer: {first_line(error)}", _INSTALL)
    finally:
        client.close()
    version, driver = info.get("ServerVersion", "?"), info.get("CgroupDriver", "?")
    if driver == "systemd":
        # moby #51446: a daemon-reload resets limits that were not set through systemd.
        return Finding("docker", Level.NOTE, f"{version}, cgroup driver systemd: daemon-reload resets limits")
    return Finding("docker", Level.OK, f"{version}, cgroup driver {driver}")
