"""Runs services as child processes of `turnbuckle up`: started in order, monitored, stopped in reverse order.

A child that exits is never restarted silently: its log is shown and `up` ends, unless another child runs the same
service and takes over. Operators have systemd, Compose or Kubernetes for restarts; `up` is interactive.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services._runtime.child_process import Child, spawn_logged
from services._runtime.command.errors import ServiceDiedError
from services._runtime.exit_code import ExitCode
from services._runtime.service.interpreter import isolated_command
from services._runtime.service.settings import CommonSettings

READY_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 15.0
RUNNER: Final = "runner"
POLL_S: Final = 0.05
_OTHER_SERVERS: Final = ("NATS_", "TURNBUCKLE_NATS_")
_USER_ERROR_CODES: Final = frozenset({ExitCode.UNAVAILABLE, ExitCode.BAD_CONFIG})
"""Exit codes of a service for errors that the user can fix: `up` ends with the same."""
_REFUSALS: Final = frozenset({"start_failed", "settings_unusable", "bus_unusable"})
"""Events of a service's log whose `error` is written for the user."""


@dataclass(slots=True)
class ChildService(Child):
    """One service in a process of its own."""

    service: str
    name: str
    """Of the process: that of the service, with a number from the second on."""
    health_port: int
    readiness: str = "it does not answer"
    """Its last answer on it."""
    is_replica: bool = True
    """Whether another process of its service takes over from it."""

    def is_ready(self) -> bool:
        """Whether it says so. Blocks for 2 s at most."""
        answer = self.fetch("/readyz")
        if answer is not None:
            self.readiness = answer[1].strip()
        return answer is not None and answer[0] == http.HTTPStatus.OK

    def refusal(self) -> str | None:
        """Why it did not start, where its log ends with a sentence for the user."""
        for line in reversed(self.log_tail().splitlines()):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and entry.get("event") in _REFUSALS and entry.get("error"):
                return str(entry["error"])
        return None

    def fetch(self, path: str) -> tuple[int, str] | None:
        """Status and body of a page of its health server; None while it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.health_port, timeout=2)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


def service_command(name: str) -> list[str]:
    """The command line of a service."""
    return isolated_command(f"services.{name}")


@dataclass(slots=True)
class Supervisor:
    """The services of one `turnbuckle up`."""

    run_directory: Path
    nats_url: str
    command: Callable[[str], list[str]] = service_command
    ready_timeout_s: float = READY_TIMEOUT_S
    """How long each service may take until it is ready."""
    children: list[ChildService] = field(default_factory=list)

    async def start(self, service: str, environment: Mapping[str, str], name: str = "") -> ChildService:
        """Start a service and wait until it says that it is ready.

        Again: another process of it, with a log of its own (``<service>-2.log``). One with a name of its own is no
        replica: where it ends, no other takes over.

        Raises:
            ServiceDiedError: it ended, or is not ready within `ready_timeout_s`; holds the end of its log.
        """
        number = 1 + sum(child.service == service for child in self.children)
        is_replica, name = not name, name or (service if number == 1 else f"{service}-{number}")
        log_file = self.run_directory / f"{name}.log"
        health_port = free_port()
        own = {**environment, CommonSettings.variable("health_port"): str(health_port)}
        child = ChildService(
            self._spawn(service, log_file, own), log_file, service, name, health_port, is_replica=is_replica
        )
        self.children.append(child)
        if await child.until_ready(child.is_ready, self.ready_timeout_s, POLL_S):
            return child
        if not child.running:
            raise self._died(child)
        within = f"within {self.ready_timeout_s:g} s"
        raise ServiceDiedError(f"{name} was not ready {within}: {child.readiness}\n{child.log_tail()}")

    def check(self) -> list[str]:
        """One sentence per process that has ended since the last call and whose service has another process.

        Raises:
            ServiceDiedError: the only process of a service has ended, or one that is no replica.
        """
        ended = [child for child in self.children if not child.running]
        for child in ended:
            self.children.remove(child)
            if not child.is_replica or not any(other.service == child.service for other in self.children):
                raise self._died(child)
        return [
            f"{child.name} has ended ({child.exit_text}), the others take over; see {child.log_file}" for child in ended
        ]

    async def stop(self, service: str) -> None:
        """Stop a service's processes together; one that does not end within `STOP_TIMEOUT_S` is killed."""
        ending = [child for child in self.children if child.service == service]
        self.children = [child for child in self.children if child.service != service]
        await asyncio.gather(*(child.end(STOP_TIMEOUT_S) for child in ending))

    async def stop_all(self) -> None:
        """Stop the services, the last started first."""
        while self.children:
            await self.stop(self.children[-1].service)

    def kill_all(self) -> None:
        """End them at once; runners only begin to end, as their jobs' workers would outlive them."""
        for child in self.children:
            child.process.send_signal(signal.SIGTERM if child.service == RUNNER else signal.SIGKILL)

    def _spawn(self, name: str, log_file: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        # These services use the server started here only, also where the user's shell names another one.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(_OTHER_SERVERS)}
        own = {**inherited, CommonSettings.variable("nats_url"): self.nats_url, **environment}
        return spawn_logged(self.command(name), log_file, own)

    @staticmethod
    def _died(child: ChildService) -> ServiceDiedError:
        user_error = child.process.returncode in _USER_ERROR_CODES
        if user_error and (refusal := child.refusal()) is not None:
            error = ServiceDiedError(f"the {child.name} does not start: {refusal}")
        else:
            error = ServiceDiedError(
                f"{child.name} has ended ({child.exit_text}); the end of {child.log_file}:\n{child.log_tail()}"
            )
        if user_error:
            error.exit_code = child.process.returncode
        return error


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
