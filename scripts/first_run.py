"""How long a first run takes and how much it brings: ``python -m scripts.first_run``.

As on a machine that has nothing of Turnbuckle, from a fresh clone of this checkout's newest commit:

* ``python``: a new environment, ``pip install -c constraints.txt .`` without a cache, ``turnbuckle up --demo``.
  As root with the demo's containers in control groups; otherwise on a simulated host.
* ``compose``: compose.yaml with compose.demo.yaml by ``up -d``, where all images are there (``make images``; with
  ``--offline`` those of ``make images-offline``). Needs root or a user of the Docker Engine.

Measured is the time from the command to the first limit that moves: to the first sample in which a container of the
demo has another CPU quota in the kernel than the one it was created with. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from schemas.cfs import CfsBatch
from schemas.subjects import CFS
from scripts.generate_figures import Row
from services._runtime.bus.api import Delivery
from services._runtime.bus.options import BusOptions
from services._runtime.command.connection import connected
from services._runtime.command.errors import CommandError
from services.cli.toolkit.supervisor import free_port
from services.cli.up.demo import MANAGED_APP, plan_demo
from tests.bench.figures import Expectation, Spread, expectation_lines
from tests.bench.machine import Machine, this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell, write_record

ROOT: Final = Path(__file__).resolve().parent.parent
LONGEST_S: Final = 180.0
PYTHON_AT_MOST_S: Final = 40.0
COMPOSE_AT_MOST_S: Final = 60.0
_STOP_S: Final = 60.0
_MB: Final = 1e6
_COMPOSE_FILES: Final = ("-f", "compose.yaml", "-f", "compose.demo.yaml")
_ADVISOR: Final = "turnbuckle-advisor"


class FirstRunError(Exception):
    """No limit moved, or a command of the first run has failed; the text says which and how."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Seconds from a command to the demo's first sample, and to its first limit that moves."""

    sample_s: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class PythonRun:
    """A first run with Python alone."""

    clone_s: float
    installation_s: float
    """Environment and packages."""
    steps: Steps
    fetched_mb: float
    """The packages from the index."""
    installed_mb: float
    """The environment, pip included."""
    maker: str
    """Of the demo's containers: docker, processes or simulated."""

    @property
    def total_s(self) -> float:
        """From ``git clone`` on."""
        return self.clone_s + self.installation_s + self.steps.limit_s


def has_moved(batch: CfsBatch, created_with_us: int) -> bool:
    """Whether a container of the batch has another CPU quota than the one it was created with."""
    return any(quota_us not in (-1, created_with_us) for quota_us in batch.column("quota_us").tolist())


async def watch(url: str, begun_s: float) -> Steps:
    """Follow the demo until a limit moves.

    Args:
        url: of NATS, which need not run yet.
        begun_s: when the command was given (monotonic).

    Raises:
        CommandError: NATS does not answer.
        TimeoutError: no limit has moved within `LONGEST_S`.
    """
    created_with_us = plan_demo().limits.quota_us
    sampled_s: list[float] = []
    moved_s: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def take(delivery: Delivery) -> None:
        if isinstance(delivery.message, CfsBatch) and not moved_s.done():
            sampled_s.append(time.monotonic())
            if has_moved(delivery.message, created_with_us):
                moved_s.set_result(sampled_s[-1])

    options = BusOptions(servers=(url,), streams=(), buckets=(), object_stores=())
    async with connected(options, within_s=LONGEST_S) as bus:
        await bus.subscribe(CFS.pattern(bus.root, app=MANAGED_APP), take)
        limit_s = await asyncio.wait_for(moved_s, LONGEST_S)
    return Steps(sampled_s[0] - begun_s, limit_s - begun_s)


def follow(command: Sequence[str | Path], cwd: Path, environment: Mapping[str, str], url: str) -> tuple[Steps, Any]:
    """Give a command and follow the demo that it starts; returns the command's process, too, which may go on.

    Raises:
        FirstRunError: no limit moves; holds the end of what the command has said.
    """
    begun_s = time.monotonic()
    with tempfile.TemporaryFile(mode="w+", encoding="utf-8") as said:
        process = subprocess.Popen(  # noqa: S603 - the commands of the documentation
            command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=said
        )
        try:
            return asyncio.run(watch(url, begun_s)), process
        except (CommandError, TimeoutError) as error:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=_STOP_S)
            said.seek(0)
            text = str(error) or f"no limit has moved within {LONGEST_S:g} s"
            raise FirstRunError(f"{_words(command)}: {text}\n{said.read()[-2000:]}") from error


def run_python(work: Path) -> PythonRun:
    """Clone, install and run the demo below a directory.

    Raises:
        FirstRunError: one of the commands fails, or no limit moves.
    """
    clone = work / "turnbuckle"
    bin_directory = clone / "env" / "bin"
    environment = plain_environment() | {"PIP_NO_CACHE_DIR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    clone_s = _clone(clone)
    begun_s = time.monotonic()
    _succeed([sys.executable, "-m", "venv", "env"], clone, environment)
    _succeed([bin_directory / "pip", "install", "--quiet", "-c", "constraints.txt", "."], clone, environment)
    installation_s = time.monotonic() - begun_s
    say(f"installed after {installation_s:.1f} s")
    port = free_port()
    up = [str(bin_directory / "turnbuckle"), "up", "--demo", "--json", "--port", str(port)]
    steps, process = follow(up, clone, environment, f"nats://127.0.0.1:{port}")
    say(f"turnbuckle up --demo: a sample after {steps.sample_s:.1f} s, a limit has moved after {steps.limit_s:.1f} s")
    process.send_signal(signal.SIGINT)
    report, _ = process.communicate(timeout=_STOP_S)
    installed_mb = _size_mb(clone / "env")
    fetched = work / "fetched"
    download = ["download", "--quiet", "-c", "constraints.txt", "--dest", str(fetched), "."]
    _succeed([bin_directory / "pip", *download], clone, environment)
    maker = json.loads(report)["maker"]
    return PythonRun(clone_s, installation_s, steps, _size_mb(fetched, without="turnbuckle"), installed_mb, maker)


@dataclass(frozen=True, slots=True)
class Stack:
    """compose.yaml with the demo in a clone, under a name, ports and a state directory of its own."""

    directory: Path
    environment: dict[str, str]
    url: str
    command: tuple[str, ...]

    @classmethod
    def of(cls, clone: Path, *, offline: bool) -> Stack:
        """Of a clone. FirstRunError: no compose is installed."""
        port, name = free_port(), f"turnbuckle-first-run-{os.getpid()}"
        settings = {
            "COMPOSE_PROJECT_NAME": name,
            "TURNBUCKLE_NATS_PORT": str(port),
            "TURNBUCKLE_RECONCILER_HEALTH_PORT": str(free_port()),
            "TURNBUCKLE_STATE_DIRECTORY": f"/run/{name}",
        }
        command = (*_compose(), *(("--env-file", "offline.env") if offline else ()), *_COMPOSE_FILES)
        return cls(clone / "compose", plain_environment() | settings, f"nats://127.0.0.1:{port}", command)

    def images(self) -> list[str]:
        """What `up` starts. FirstRunError: compose refuses the files."""
        content = yaml.safe_load(_succeed([*self.command, "config"], self.directory, self.environment))
        return images_of(content)

    def run(self) -> Steps:
        """Start everything, and remove it. FirstRunError: no limit moves."""
        try:
            steps, process = follow([*self.command, "up", "-d"], self.directory, self.environment, self.url)
            process.communicate(timeout=LONGEST_S)
        finally:
            _succeed([*self.command, "down", "--volumes"], self.directory, self.environment)
            shutil.rmtree(self.environment["TURNBUCKLE_STATE_DIRECTORY"], ignore_errors=True)
        say(f"compose up -d: a sample after {steps.sample_s:.1f} s, a limit has moved after {steps.limit_s:.1f} s")
        return steps


def images_of(content: Mapping[str, Any]) -> list[str]:
    """Images of the services that `up` starts unasked, out of what ``compose config`` prints."""
    return sorted({service["image"] for service in content["services"].values() if not service.get("profiles")})


def image_sizes_mb(images: Sequence[str]) -> dict[str, float]:
    """Size of each image in the engine, MB. FirstRunError: one is not there."""
    inspect = ["docker", "image", "inspect", "--format", "{{.Size}}"]
    return {image: int(_succeed([*inspect, image], ROOT, plain_environment())) / _MB for image in images}


def saved_mb(images: Sequence[str]) -> float:
    """What images hold together, MB: layers that they share count once."""
    total = 0
    with subprocess.Popen(["docker", "save", *images], stdout=subprocess.PIPE) as process:  # noqa: S603, S607 - docker
        assert process.stdout is not None
        while read := len(process.stdout.read(1 << 20)):
            total += read
    return total / _MB


def python_table(runs: Sequence[PythonRun]) -> list[list[str]]:
    """Rows of what was measured and its figure."""
    makers = {"docker": "Docker containers", "processes": "processes in control groups", "simulated": "simulated host"}
    named = ", ".join(sorted({makers[run.maker] for run in runs}))
    return [
        ["packages fetched from the index", _figure([run.fetched_mb for run in runs], "MB")],
        ["environment on the disk", _figure([run.installed_mb for run in runs], "MB")],
        ["environment made and packages installed", _figure([run.installation_s for run in runs], "s")],
        [
            f"`turnbuckle up --demo` ({named}): first limit moved",
            _figure([run.steps.limit_s for run in runs], "s"),
        ],
        ["all of it, `git clone` included", _figure([run.total_s for run in runs], "s")],
    ]


def compose_table(runs: Sequence[Steps], sizes_mb: Mapping[str, float], together_mb: float) -> list[list[str]]:
    """Rows of what was measured and its figure; images by size."""
    rows = [["`up -d` with the demo, images present: first limit moved", _figure([run.limit_s for run in runs], "s")]]
    rows.append(["images that it starts, shared layers counted once", _figure([together_mb], "MB")])
    for image, size_mb in sorted(sizes_mb.items(), key=lambda item: item[1]):
        name = image.rpartition(":")[0]
        asked = ", with the profile `advisor` only" if name == _ADVISOR else ""
        rows.append([f"`{name}`{asked}", _figure([size_mb], "MB")])
    return rows


def plain_environment() -> dict[str, str]:
    """This process' variables without settings of ours, of compose and of the interpreter."""
    ours = ("TURNBUCKLE_", "NATS_", "COMPOSE_", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def _compose() -> tuple[str, ...]:
    """Version 2 as a plugin, else version 1 as a program. FirstRunError: neither is installed."""
    plugin = ["docker", "compose", "version"]
    if shutil.which("docker") and not subprocess.run(plugin, capture_output=True, check=False).returncode:  # noqa: S603
        return ("docker", "compose")
    if program := shutil.which("docker-compose"):
        return (program,)
    raise FirstRunError("neither docker compose nor docker-compose is installed")


def _clone(directory: Path) -> float:
    """Seconds that it takes."""
    begun_s = time.monotonic()
    _succeed(["git", "clone", "--quiet", str(ROOT), str(directory)], ROOT, plain_environment())
    return time.monotonic() - begun_s


def _succeed(command: Sequence[str | Path], cwd: Path, environment: Mapping[str, str]) -> str:
    """What a command prints. FirstRunError: it fails; holds the end of what it has said."""
    done = subprocess.run(command, cwd=cwd, env=environment, text=True, capture_output=True, check=False)  # noqa: S603
    if done.returncode:
        raise FirstRunError(f"{_words(command)} ends with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def _words(command: Sequence[str | Path]) -> str:
    return " ".join(part.name if isinstance(part, Path) else part for part in command)


def _size_mb(directory: Path, without: str | None = None) -> float:
    """Of all files below it but those whose names begin so."""
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files if without is None or not path.name.startswith(without)) / _MB


def _figure(values: Sequence[float], unit: str) -> str:
    spread = Spread.of(values)
    return Row("", unit, round(spread.median, 1), round(spread.least, 1), round(spread.most, 1)).figure


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="turnbuckle-first-run-") as name:
        yield Path(name)


@dataclass(frozen=True, slots=True)
class Part:
    """What was measured of one way to begin."""

    heading: str
    rows: list[list[str]]
    expectation: Expectation
    runs: list[dict[str, Any]]


def measure_python(runs: int) -> Part:
    """A clone and an environment of its own for each run."""
    done = []
    for _ in range(runs):
        with _directory() as work:
            done.append(run_python(work))
    limit_s = Spread.of([run.steps.limit_s for run in done])
    expectation = Expectation("turnbuckle up --demo to the first limit", PYTHON_AT_MOST_S, "s", limit_s)
    return Part("nothing but Python", python_table(done), expectation, [asdict(run) for run in done])


def measure_compose(runs: int, *, offline: bool) -> Part:
    """One clone; volumes and containers are new in each run."""
    with _directory() as work:
        _clone(work / "turnbuckle")
        stack = Stack.of(work / "turnbuckle", offline=offline)
        started = stack.images()
        sizes_mb = image_sizes_mb([*started, *_advisor_image(started)])
        done = [stack.run() for _ in range(runs)]
    limit_s = Spread.of([run.limit_s for run in done])
    expectation = Expectation("compose up -d to the first limit", COMPOSE_AT_MOST_S, "s", limit_s)
    rows = compose_table(done, sizes_mb, saved_mb(started))
    return Part("Docker Compose", rows, expectation, [asdict(run) for run in done])


def record_of(machine: Machine, parts: Mapping[str, Part]) -> dict[str, Any]:
    """As it is written: `python -m scripts.generate_figures --take` makes tables of the pages out of it."""
    return {
        "machine": machine.line,
        "tables": {
            kind: {"machine": machine.line, "columns": [part.heading, "median (range)"], "rows": part.rows}
            for kind, part in parts.items()
        },
        "expectations": [part.expectation.as_dict() for part in parts.values()],
        "runs": {kind: part.runs for kind, part in parts.items()},
    }


def _advisor_image(started: Sequence[str]) -> list[str]:
    """The advisor's, of the version of the others, if the engine has it."""
    [version] = {image.rpartition(":")[2] for image in started if image.startswith("turnbuckle-agent:")}
    image = f"{_ADVISOR}:{version}"
    listed = _succeed(["docker", "image", "ls", "--quiet", image], ROOT, plain_environment())
    return [image] if listed.strip() else []


def _text(machine: Machine, parts: Mapping[str, Part]) -> str:
    lines = [machine.line, ""]
    for part in parts.values():
        lines += [part.heading, *(f"  {what:<70} {figure}" for what, figure in part.rows), ""]
    return "\n".join([*lines, *expectation_lines([part.expectation for part in parts.values()], 45, 1)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write bench-results/first-run.json; returns the exit code."""
    parser = argparse.ArgumentParser(prog="first_run", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="?", default="all", choices=("all", "python", "compose"))
    parser.add_argument("--runs", type=int, default=3, help="of each (default: %(default)s)")
    parser.add_argument("--offline", action="store_true", help="with the images of make images-offline")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("--runs takes 1 or more")
    machine = this_machine()
    parts: dict[str, Part] = {}
    try:
        if options.what in ("all", "python"):
            parts["python"] = measure_python(options.runs)
        if options.what in ("all", "compose"):
            parts["compose"] = measure_compose(options.runs, offline=options.offline)
    except FirstRunError as error:
        say(str(error))
        return UNAVAILABLE
    record = record_of(machine, parts)
    tell(_text(machine, parts), record, [write_record(record, OUTPUT / "first-run.json")], as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
