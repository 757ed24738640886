"""The connection to the Docker Engine, and what to say when there is none."""

from __future__ import annotations

import os
import socket
from typing import Final

import docker
import requests
from docker.errors import DockerException

from services._runtime.command.errors import UnavailableError

DEFAULT_SOCKET: Final = "unix:///var/run/docker.sock"
_PROBE_S: Final = 5.0
FAILURES: Final = (DockerException, requests.exceptions.RequestException)
"""All that the docker package raises, also when the engine goes away."""


def open_engine(timeout_s: int = 60) -> docker.DockerClient:
    """Connect as the ``docker`` command would: ``DOCKER_HOST`` or the local socket. The caller closes it.

    Raises:
        UnavailableError: no engine answers; the text says why, and what would help.
    """
    _probe(os.environ.get("DOCKER_HOST") or DEFAULT_SOCKET)
    try:
        return docker.from_env(timeout=timeout_s)
    except FAILURES as error:
        raise UnavailableError(f"no Docker Engine answers: {first_line(error)}") from error


def _probe(url: str) -> None:
    """Try the socket first: the docker package would leak one for each failure, and hide the reason in a long text."""
    if not url.startswith("unix://"):
        return
    path = url.removeprefix("unix://")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except PermissionError as error:
            raise UnavailableError(
                f"no Docker Engine for us at {path}: permission denied. Join the group 'docker' or use sudo"
            ) from error
        except OSError as error:
            raise UnavailableError(
                f"no Docker Engine answers at {path}: {error.strerror or error}. Start it: systemctl start docker"
            ) from error


def first_line(error: Exception) -> str:
    """The beginning of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0][:160]
