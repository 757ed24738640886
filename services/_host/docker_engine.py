"""The Docker Engine at its socket, and its events as a signal that something has changed.

The docker package blocks: `EngineEvents.follow` is for a thread of its own.
"""

from __future__ import annotations

import socket
import threading
from typing import Any, Final

import docker
from docker.constants import DEFAULT_UNIX_SOCKET
from docker.errors import DockerException
from docker.types.daemon import CancellableStream
from docker.utils import kwargs_from_env
from urllib3.exceptions import HTTPError

REQUEST_TIMEOUT_S: Final = 5
FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 2.0
FAILURES: Final = (DockerException, OSError, HTTPError, ValueError)
"""All that the docker package raises when the engine is away: requests' errors are OSErrors, and JSON cut off in
the middle is a ValueError."""


def probe(url: str) -> None:
    """Connect to the socket of a ``unix://`` URL, and close it again; another URL is not tried.

    The docker package leaves a socket unclosed when it cannot connect, which shows as a ResourceWarning, and hides the
    reason in a long text.

    Raises:
        OSError: the engine does not listen there.
    """
    _, unix, path = url.partition("unix://")
    if unix:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(REQUEST_TIMEOUT_S)
            connection.connect(path)


class EngineEvents:
    """Events of an engine, of one kind; an engine that is away is tried again until `stop`."""

    def __init__(self, base_url: str | None, filters: dict[str, Any]) -> None:
        """Begin with `follow`.

        Args:
            base_url: ``unix://...`` or ``tcp://...``; None: where DOCKER_HOST says.
            filters: of ``GET /events``.
        """
        self.changed = threading.Event()
        """Something may have changed: an event came, the connection was made anew or lost, or this was stopped."""
        self.stopped = threading.Event()
        self._base_url = base_url
        self._filters = filters
        self._stream_lock = threading.Lock()
        self._stream: CancellableStream[Any] | None = None

    def connect(self) -> docker.APIClient:
        """A client. Raises one of `FAILURES`."""
        self.probe()
        return docker.APIClient(version="auto", timeout=REQUEST_TIMEOUT_S, **self._where())

    def probe(self) -> None:
        """Raise OSError if the engine does not listen at its socket."""
        probe(self._where().get("base_url", DEFAULT_UNIX_SOCKET))

    def _where(self) -> dict[str, Any]:
        return {"base_url": self._base_url} if self._base_url is not None else {**kwargs_from_env()}

    def stop(self) -> None:
        """Make `follow` end soon; a wait for the engine's reply ends after `REQUEST_TIMEOUT_S`."""
        self.stopped.set()
        self.changed.set()
        with self._stream_lock:
            if self._stream is not None:
                self._stream.close()

    def follow(self) -> None:
        """Read events until stopped."""
        retry_s = FIRST_RETRY_S
        while not self.stopped.is_set():
            try:
                client = self.connect()
            except FAILURES:
                self.stopped.wait(retry_s)
                retry_s = min(2 * retry_s, LAST_RETRY_S)
                continue
            try:
                self._read_stream(client)
                retry_s = FIRST_RETRY_S
            except FAILURES:
                self.stopped.wait(retry_s)
                retry_s = min(2 * retry_s, LAST_RETRY_S)
            finally:
                self.changed.set()
                client.close()

    def _read_stream(self, client: docker.APIClient) -> None:
        stream = client.events(decode=True, filters=self._filters)
        with self._stream_lock:
            self._stream = stream
        try:
            if not self.stopped.is_set():
                self.changed.set()  # for what happened before this stream was open
                for _ in stream:
                    self.changed.set()
        finally:
            with self._stream_lock:
                self._stream = None
            stream.close()
