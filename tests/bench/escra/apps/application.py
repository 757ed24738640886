"""What an application of the bench is: containers of unmodified servers, seeded data, requests with known answers.

Pure: nothing here or in the applications talks to a Docker Engine, so that the load's process can import them cheaply.
`tests.bench.escra.deploy` starts what is described here.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tests.bench.escra.image.packages import POSTGRES_BIN, POSTGRES_DATA

SERVICES_DIRECTORY = "/srv/bench"
"""Where a container sees tests/bench/escra/apps/services, read only."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container; its name is its label turnbuckle.name and its host name on the application's network."""

    name: str
    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    """Path in the container -> text: a server's configuration, read only."""
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    """As whom it runs; the image's default is root."""


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP/1.1 request, and what its answer must hold."""

    method: str
    path: str
    body: bytes = b""
    expected: bytes = b""
    """A part of every right answer that differs between requests: see `Application.check`."""
    kind: str = ""
    """For tables: which of the application's sorts of request this is."""


class Site(Protocol):
    """A deployed application, as far as its own `prepare`, `reset` and `run_batch` need it."""

    async def execute(self, container: str, *command: str) -> str:
        """Run a command in a container and return what it printed; RuntimeError if it fails."""
        ...

    async def ask(self, container: str, port: int, lines: bytes, answers: int) -> list[bytes]:
        """Send lines to a server's port and return as many lines of its answer (Redis and memcached speak so)."""
        ...

    async def run_to_end(self, containers: tuple[Container, ...], deadline_s: float) -> dict[str, Ending]:
        """Start containers together, wait until all have ended, remove them; TimeoutError after ``deadline_s``."""
        ...


@dataclass(frozen=True, slots=True)
class Ending:
    """How a short-lived container ended: `started_s` and `ended_s` on the monotonic clock."""

    exit_code: int
    oom_killed: bool
    started_s: float
    ended_s: float


class Application(ABC):
    """An application of issue 8. At `base_rate_rps` it uses 0.5 to 0.7 of a core of the measuring machine."""

    name: str
    containers: tuple[Container, ...]
    entry: str
    """The container that answers requests on port 80."""
    base_rate_rps: float

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def request(self, rng: random.Random, sequence: int) -> Request:
        """The request number ``sequence`` of a run: the same for the same state of ``rng``. Takes microseconds."""

    def check(self, request: Request, status: int, body: bytes) -> bool:
        """Whether an answer is right: only then a request counts as successful."""
        return status == 200 and request.expected in body

    async def prepare(self, site: Site) -> None:  # noqa: B027 - most have no data
        """Load the seeded data, once after the start."""

    async def reset(self, site: Site) -> None:  # noqa: B027 - most change none
        """Bring data back to where they were after `prepare`, between two runs; well below a second."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A batch's completion: wall time from the first order to the last task's answer, and what came out."""

    completion_s: float
    tasks_done: int
    workers: int
    workers_failed: int
    oom_kills: int
    best: Mapping[str, float | str]
    """The best of the searched parameters and its score: the same for every right run."""


class BatchApplication(Application):
    """An application that does not answer requests: it is run to its end."""

    base_rate_rps = 0.0

    def request(self, rng: random.Random, sequence: int) -> Request:
        """There are none."""
        raise TypeError(f"{self.name} answers no requests: it is run to its end")

    @abstractmethod
    async def run_batch(self, site: Site) -> BatchResult:
        """Run the whole batch once.

        Raises:
            RuntimeError: an answer is missing although the workers ended well.
            TimeoutError: workers did not end.
        """


def gunicorn(module: str, threads: int = 8) -> tuple[str, ...]:
    """Command of a small service: Debian's gunicorn, one worker process with threads, on port 8000."""
    return (
        "gunicorn",
        f"--chdir={SERVICES_DIRECTORY}",
        "--bind=0.0.0.0:8000",
        "--workers=1",
        "--worker-class=gthread",
        f"--threads={threads}",
        "--keep-alive=300",
        "--timeout=300",
        "--worker-tmp-dir=/dev/shm",
        "--log-level=warning",
        f"{module}:app",
    )


def nginx(locations: str, upstreams: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Command and configuration of a front server on port 80.

    Args:
        locations: what stands in the server block.
        upstreams: name -> addresses "host:port", with connections that are kept.
    """
    blocks = "\n".join(
        f"upstream {name} {{ least_conn; keepalive 64; keepalive_requests 1000000; keepalive_timeout 300s;\n"
        + "".join(f"  server {address} max_fails=0;\n" for address in addresses)
        + "}"
        for name, addresses in upstreams.items()
    )
    text = _NGINX.replace("UPSTREAMS", blocks).replace("LOCATIONS", locations)
    return ("nginx", "-c", "/etc/bench/nginx.conf"), {"/etc/bench/nginx.conf": text}


_NGINX = """\
daemon off;
worker_processes 1;
error_log stderr error;
pid /tmp/nginx.pid;
events { worker_connections 1024; }
http {
  access_log off;
  keepalive_timeout 300s;
  keepalive_requests 1000000;
  client_max_body_size 8m;
  client_body_buffer_size 1m;
  proxy_http_version 1.1;
  proxy_set_header Connection "";
  proxy_buffers 16 64k;
  proxy_buffer_size 64k;
  proxy_read_timeout 60s;
UPSTREAMS
  server {
    listen 80 backlog=1024;
LOCATIONS
  }
}
"""


def redis(*options: str) -> tuple[str, ...]:
    """Command of a Redis server that keeps nothing on disk."""
    return ("redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--appendonly", "no", *options)


def postgres(*options: str) -> tuple[str, ...]:
    """Command of a PostgreSQL server on the image's empty cluster; it must run as the user postgres.

    Commits are not waited for on the disk (`synchronous_commit`, `fsync`): the bench asks about CPU and memory, and the
    disk of a rented machine would only add noise.
    """
    settings = (
        "listen_addresses=*",
        "fsync=off",
        "synchronous_commit=off",
        "full_page_writes=off",
        "shared_buffers=32MB",
        "max_connections=40",
        "autovacuum=off",
        "unix_socket_directories=/tmp",
        *options,
    )
    flags = [part for setting in settings for part in ("-c", setting)]
    return (f"{POSTGRES_BIN}/postgres", "-D", POSTGRES_DATA, *flags)
