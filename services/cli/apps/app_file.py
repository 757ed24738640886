"""app.yaml: an application's limits, and the containers that `turnbuckle apply` creates.

    name: shop
    cpu_limit: 2              # cores, over all containers and hosts
    memory_limit: 1GiB
    policy: waterfill         # or escra
    mode: enforce             # or observe: decide and publish, write nothing
    containers:
      - name: web
        image: nginx:1.27
        replicas: 2
        ports: ["8080:80"]
      - name: worker
        image: python:3.11
        command: ["python", "-m", "worker"]
        environment: {QUEUE: jobs}

Without ``containers`` only the limits are announced; containers that carry the label ``turnbuckle.app: shop`` join by
themselves, whoever starts them.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from schemas.apps import NAME_PATTERN, AppSpec, Name
from services._runtime.command.errors import BadFileError
from services._runtime.command.yaml_file import (
    FieldPath,
    YamlSource,
    dotted,
    parse_yaml,
    read_yaml,
    to_environment,
    to_text,
    validate,
)

LABEL_PREFIX: Final = "turnbuckle."
MAX_REPLICAS: Final = 10_000
PORT_PATTERN: Final = re.compile(
    r"^(?:(?:(?P<address>[0-9.]+|\[[0-9a-fA-F:]+\]):)?(?P<host>[0-9]{1,5})?:)?"
    r"(?P<container>[0-9]{1,5})(?:/(?P<protocol>tcp|udp|sctp))?$"
)
VOLUME_PATTERN: Final = re.compile(r"^(?:/[^:]*|[A-Za-z0-9][A-Za-z0-9_.-]*):/[^:]*(?::(?:ro|rw))?$")
_KUBERNETES: Final = (
    "pods join an application by their label turnbuckle.app, and its limits stand in an app.yaml of its own "
    "(compose/kubernetes/README.md)"
)


def _to_command(value: Any) -> Any:
    """Accept one line, split as a shell would split it, or a list of arguments."""
    if isinstance(value, str):
        return shlex.split(value)
    return [to_text(item) for item in value] if isinstance(value, list) else value


def _to_texts(value: Any) -> Any:
    """``ports: [80]`` is as good as ``["80"]``."""
    return [to_text(item) for item in value] if isinstance(value, list) else value


def _check_port(port: str) -> str:
    if not PORT_PATTERN.match(port):
        raise ValueError(f"{port!r} should be [address:][host port:]container port[/tcp|udp|sctp], such as '8080:80'")
    return port


def _check_volume(volume: str) -> str:
    if not VOLUME_PATTERN.match(volume):
        raise ValueError(f"{volume!r} should be source:target[:ro], source an absolute path or a volume's name")
    return volume


def _refuse_own_labels(labels: dict[str, str]) -> dict[str, str]:
    if own := next((label for label in labels if label.startswith(LABEL_PREFIX)), None):
        raise ValueError(f"{own} is set by `turnbuckle apply` itself: labels must not start with '{LABEL_PREFIX}'")
    return labels


class ContainerTemplate(BaseModel):
    """One entry of ``containers``: what the Docker Engine is asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: Name
    image: Annotated[str, Field(min_length=1, description="as for docker run; pulled when it is not there")]
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    command: Annotated[tuple[str, ...] | None, BeforeValidator(_to_command)] = None
    environment: Annotated[dict[str, str], BeforeValidator(to_environment)] = {}
    volumes: tuple[Annotated[str, AfterValidator(_check_volume)], ...] = ()
    ports: Annotated[tuple[Annotated[str, AfterValidator(_check_port)], ...], BeforeValidator(_to_texts)] = ()
    network: Annotated[str | None, Field(min_length=1, description="created when it is not there")] = None
    labels: Annotated[dict[str, str], BeforeValidator(to_environment), AfterValidator(_refuse_own_labels)] = {}
    restart: Literal["no", "always", "on-failure", "unless-stopped"] = "unless-stopped"

    @model_validator(mode="after")
    def _check_host_ports(self) -> Self:
        fixed = next((port for port in self.ports if (match := PORT_PATTERN.match(port)) and match["host"]), None)
        if self.replicas > 1 and fixed:
            raise ValueError(
                f"{self.replicas} replicas cannot share the host's port in {fixed!r}: name only the container's"
            )
        return self


class Instance(NamedTuple):
    """One container to be: a template and, among replicas, its own name."""

    name: str
    template: ContainerTemplate


class AppFile(AppSpec):
    """A whole app.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    type_name: ClassVar[str] = AppSpec.type_name

    containers: tuple[ContainerTemplate, ...] = ()

    @property
    def spec(self) -> AppSpec:
        """The limits alone: what goes onto the bus, with the number of containers that room is kept for."""
        fields = self.model_dump(exclude={"containers"})
        announced = max(self.announced_containers, sum(template.replicas for template in self.containers))
        return AppSpec.model_validate(fields | {"announced_containers": announced})

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Every container; replicas are numbered from 1: ``web-1``, ``web-2``."""
        return tuple(
            Instance(template.name if template.replicas == 1 else f"{template.name}-{number}", template)
            for template in self.containers
            for number in range(1, template.replicas + 1)
        )


def load_app_file(file: Path) -> AppFile:
    """Read and check an app.yaml.

    Raises:
        BadFileError: with every mistake on a line of its own, each with file, line, field and what to do.
    """
    return _check(read_yaml(file))


def parse_app_file(text: str, file: str = "app.yaml") -> AppFile:
    """Check the text of an app.yaml.

    Raises:
        BadFileError: as `load_app_file`.
    """
    return _check(parse_yaml(text, file))


def _check(source: YamlSource) -> AppFile:
    if not isinstance(source.content, dict):
        raise BadFileError(f"{source.file}: expected fields such as 'name: shop', 'cpu_limit: 2', 'memory_limit: 1GiB'")
    if foreign := _describe_foreign_file(source):
        raise BadFileError(foreign)
    if wrong := _find_boolean_numbers(source.content):
        raise BadFileError(
            "\n".join(f"{source.place(path)}: {dotted(path)}: should be a number, not true or false" for path in wrong)
        )
    app_file = validate(source, AppFile)
    _check_names(app_file, source)
    if (count := len(app_file.instances)) and (refusal := app_file.refuse_containers(count)):
        raise BadFileError(f"{source.place(('containers',))}: {refusal}")
    return app_file


def _describe_foreign_file(source: YamlSource) -> str | None:
    """A sentence where the file is another tool's, Kubernetes' or Compose's; None: it may be an app.yaml."""
    content = source.content
    label = "give the containers the label turnbuckle.app: NAME, and announce NAME's limits in an app.yaml of its own"
    if "kind" in content or "apiVersion" in content:
        field = "kind" if "kind" in content else "apiVersion"
        found = f"this is a Kubernetes manifest ({field}: {content[field]})"
        return f"{source.place((field,))}: {found}, and no app.yaml: apply it with kubectl; {_KUBERNETES}"
    if "services" in content:
        return f"{source.place(('services',))}: this is a Compose file, and no app.yaml: {label}"
    return None


def _find_boolean_numbers(content: dict[Any, Any]) -> list[FieldPath]:
    """``cpu_limit: true`` would pass as 1.0."""
    found: list[FieldPath] = [(str(name),) for name, value in content.items() if isinstance(value, bool)]
    containers = content.get("containers")
    for position, entry in enumerate(containers if isinstance(containers, list) else []):
        if isinstance(entry, dict) and isinstance(entry.get("replicas"), bool):
            found.append(("containers", position, "replicas"))
    return [path for path in found if path[0] in AppFile.model_fields]


def _check_names(app_file: AppFile, source: YamlSource) -> None:
    owners: dict[str, int] = {}
    for position, template in enumerate(app_file.containers):
        place = source.place(("containers", position, "name"))
        names = [instance.name for instance in app_file.instances if instance.template is template]
        for name in names:
            if not re.match(NAME_PATTERN, name):
                raise BadFileError(f"{place}: container name {name!r} is longer than 63 characters")
            if name in owners and owners[name] != position:
                raise BadFileError(f"{place}: two containers are named {name!r}: names must differ")
            owners[name] = position
