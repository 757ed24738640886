"""The connection to the Docker Engine, and what to say when there is none."""

from __future__ import annotations

import os
from typing import Final

import docker
import requests
from docker.errors import DockerException

from services._host.docker_engine import probe
from services._runtime.command.errors import UnavailableError

DEFAULT_SOCKET: Final = "unix:///var/run/docker.sock"
FAILURES: Final = (DockerException, requests.exceptions.RequestException)
"""All that the docker package raises, also when the engine goes away."""


def open_engine(timeout_s: int = 60) -> docker.DockerClient:
    """Connect as the ``docker`` command would: ``DOCKER_HOST`` or the local socket. The caller closes it.

    Raises:
        UnavailableError: no engine answers; the text says why, and what would help.
    """
    url = os.environ.get("DOCKER_HOST") or DEFAULT_SOCKET
    path = url.removeprefix("unix://")
    try:
        probe(url)
    except PermissionError as error:
        raise UnavailableError(
            f"no Docker Engine for us at {path}: permission denied. Join the group 'docker' or use sudo"
        ) from error
    except OSError as error:
        raise UnavailableError(
            f"no Docker Engine answers at {path}: {error.strerror or error}. Start it: systemctl start docker"
        ) from error
    try:
        return docker.from_env(timeout=timeout_s)
    except FAILURES as error:
        raise UnavailableError(f"no Docker Engine answers: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """The beginning of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0][:160]
