"""topology.yaml: the links that jobs may share, such as a rack's uplink.

Such as::

    links:
      rack-1-up: {rate: 25Gbit, nodes: [n1, n2, n3, n4]}

A job uses a link if it has workers on both sides of it: on these nodes, and on others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from schemas.jobs import Name
from schemas.rates import parse_rate
from schemas.scheduling import ClusterLink
from services._runtime.command.errors import BadFileError
from services._runtime.command.yaml_file import read_yaml, validate
from services._runtime.settings_error import UnusableSettingsError

MOST_LINKS: Final = 1_000


def _to_rate(value: Any) -> Any:
    return parse_rate(value) if isinstance(value, str) else value


class LinkSection(BaseModel):
    """One link."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rate: Annotated[int, BeforeValidator(_to_rate), Field(ge=1, le=1 << 62)]
    nodes: Annotated[tuple[Name, ...], Field(min_length=1)]


class TopologyFile(BaseModel):
    """A whole topology.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    links: Annotated[dict[Name, LinkSection], Field(max_length=MOST_LINKS)]


def read_topology(file: Path) -> tuple[ClusterLink, ...]:
    """The links, by name.

    Raises:
        UnusableSettingsError: with every mistake on a line of its own, each with file, line, field and what to do.
    """
    try:
        topology = validate(read_yaml(file), TopologyFile)
    except BadFileError as error:
        raise UnusableSettingsError(str(error)) from error
    return tuple(
        ClusterLink(link=name, bits_per_s=section.rate, nodes=tuple(sorted(set(section.nodes))))
        for name, section in sorted(topology.links.items())
    )
