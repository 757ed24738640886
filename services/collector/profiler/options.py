"""The command line of a local run, and what it says about the task."""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from schemas.accelerators import canonical_name
from schemas.jobs import Configuration, TaskFeatures
from schemas.sizes import parse_size
from services._jobs.sandbox.network import MAX_RATE_BITS_PER_S, MIN_RATE_BITS_PER_S
from services._runtime.command.errors import UsageError
from services._runtime.command.tool_parser import ToolParser
from services.collector.profiler.progress.choice import Known
from services.collector.profiler.worker_environment import MASTER_PORT
from services.collector.profiler.workers import SandboxLimits
from services.collector.tool import BadDataError, default_directory, number_within

MAX_MINUTES: Final = 60.0
MAX_WORKERS: Final = 64
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9_-]+")
_GIB: Final = 1 << 30
_MAX_GROUPS: Final = 2
_FEATURE_OPTIONS: Final = {
    "parameters": "parameter_count",
    "optimizer": "optimizer",
    "learning_rate": "learning_rate",
    "epochs": "epochs",
    "steps": "steps",
    "samples_per_epoch": "samples_per_epoch",
}


@dataclass(frozen=True, slots=True)
class LocalRunPlan:
    """One local run."""

    run: str
    argv: tuple[str, ...]
    workers: int
    limit_s: float
    interval_s: float
    grace_s: float
    """From SIGTERM to SIGKILL."""
    limits: SandboxLimits
    master_port: int
    task: TaskFeatures
    configuration: Configuration
    out: Path
    use_bus: bool

    progress: str = ""
    """The counter of the output that counts the training: its name, or a regular expression with a group."""
    calibrate: bool = True
    """Measure the machine's speed before the run."""

    @property
    def progress_pattern(self) -> re.Pattern[str] | None:
        """`progress` where it is a regular expression; None: a name, or nothing."""
        return _pattern(self.progress)

    @property
    def known_progress(self) -> Known:
        """What the command line says about the training's progress."""
        return Known(self.task.epochs, self.task.steps, self.progress)

    @property
    def cpu_cores(self) -> float | None:
        """Sum of the workers' limits; None: unlimited."""
        return None if self.limits.cpu_cores is None else self.limits.cpu_cores * self.workers

    @property
    def logs(self) -> Path:
        """Directory of the workers' output."""
        return self.out.absolute() / "logs" / self.run


def parse(arguments: list[str]) -> LocalRunPlan:
    """Read the command line, and the features' file where one is given.

    Raises:
        UsageError: an option makes no sense.
        BadDataError: the features' file cannot be used.
    """
    given = _parser().parse_args(arguments)
    argv = tuple(given.command[1:] if given.command[:1] == ["--"] else given.command)
    if not argv:
        raise UsageError("no command: write it after --, such as `-- python train.py`")
    limits = SandboxLimits(given.cpus, given.memory, given.network_bps)
    try:
        task = _task(given, argv)
        configuration = _configuration(given, limits)
    except ValidationError as error:
        raise BadDataError(_first_problem(error)) from error
    return LocalRunPlan(
        run=given.run or f"{_plain(task.task)}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(2)}",
        argv=argv,
        workers=given.workers,
        limit_s=given.seconds if given.seconds is not None else given.minutes * 60,
        interval_s=given.interval,
        grace_s=given.grace,
        limits=limits,
        master_port=given.master_port,
        task=task,
        configuration=configuration,
        out=given.out or default_directory("runs"),
        use_bus=not given.no_bus,
        progress=given.progress or "",
        calibrate=not given.no_calibration,
    )


def _parser() -> argparse.ArgumentParser:
    parser = ToolParser(
        prog="python -m services.collector.profiler.run",
        description="Run a training command as one master and its workers, and record what each uses per second.",
        epilog="The command is started once per worker with RANK, WORLD_SIZE, MASTER_ADDR... set, as torchrun sets "
        "them, in a network of its own: it must not download anything. Do not start it with torchrun itself.",
    )
    add = parser.add_argument
    add("--workers", type=number_within(int, 1, MAX_WORKERS), default=3, help="the master included (default: 3)")
    add(
        "--minutes", type=number_within(float, 0.01, MAX_MINUTES), default=10.0, help="stop after so long (default: 10)"
    )
    add("--seconds", type=number_within(float, 0.5, MAX_MINUTES * 60), help="the same in seconds")
    add("--interval", type=number_within(float, 0.05, 60.0), default=1.0, help="seconds between samples (default: 1)")
    add(
        "--grace",
        type=number_within(float, 0.0, 300.0),
        default=10.0,
        help="seconds from SIGTERM to SIGKILL (default: 10)",
    )
    add("--cpus", type=number_within(float, 0.01, 1024.0), help="cores of each worker; default: no limit")
    add("--memory", type=_size, help="memory of each worker, such as 2GiB; default: no limit")
    add(
        "--network-bps",
        type=number_within(int, MIN_RATE_BITS_PER_S, MAX_RATE_BITS_PER_S),
        help="bit/s of each worker, each way; default: none",
    )
    add("--master-port", type=number_within(int, 1, 65_535), default=MASTER_PORT, help=f"default: {MASTER_PORT}")
    add("--out", type=Path, help="directory of journal and logs; default: below the user's state directory")
    add("--run", type=_run_name, help="name of the run; default: task and time")
    add("--no-bus", action="store_true", help="keep the profile in the journal only")
    add(
        "--no-calibration",
        action="store_true",
        help="do not measure this machine's speed before the run (5 s): intervals for other machines get wider",
    )
    add("--features", type=Path, help="what `turnbuckle features --json` wrote, or a TaskFeatures as JSON")
    add("--task", help="name of the task; default: the script's")
    add("--parameters", type=number_within(int, 0, 1 << 60), help="trainable parameters: makes steps of bytes sent")
    add("--batch-size", type=number_within(int, 1, 1 << 40), help="per worker")
    add("--accelerator", metavar="NAME", help="of the GPU that each worker trains on, such as T4; default: none")
    add("--optimizer", help="such as Adam")
    add("--learning-rate", type=number_within(float, 0.0, 1e9), help="at the start")
    add("--epochs", type=number_within(int, 1, 1 << 40), help="of the whole training")
    add("--steps", type=number_within(int, 1, 1 << 60), help="optimizer steps of the whole training")
    add(
        "--progress",
        type=_progress,
        metavar="COUNTER",
        help="which number it prints counts the training: a counter as shown where no rate is found, such as "
        "'Epoch: [#][#/5005', or a regular expression with a group for the count and perhaps one for the whole",
    )
    add("--samples-per-epoch", type=number_within(int, 1, 1 << 60), help="over all workers")
    add("command", nargs=argparse.REMAINDER, metavar="-- CMD...", help="the training command")
    return parser


def _task(given: argparse.Namespace, argv: tuple[str, ...]) -> TaskFeatures:
    fields: dict[str, Any] = {"task": _script(argv)}
    if given.features is not None:
        fields |= _read_features(given.features)
    if given.task:
        fields["task"] = given.task
    for option, field in _FEATURE_OPTIONS.items():
        if getattr(given, option) is not None:
            fields[field] = getattr(given, option)
    return TaskFeatures.model_validate(fields)


def _read_features(path: Path) -> dict[str, Any]:
    """A TaskFeatures as JSON, or the features tool's output, whose last ``result`` event holds one."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadDataError(f"{path} cannot be read: {error}") from error
    found: dict[str, Any] | None = None
    for part in [text, *text.splitlines()]:
        try:
            plain = json.loads(part)
        except ValueError:
            continue
        if isinstance(plain, dict) and isinstance(plain.get("features"), dict):
            found = plain["features"]
        elif isinstance(plain, dict) and "task" in plain:
            found = plain
    if found is None:
        raise BadDataError(f"{path} holds no features: it is what `turnbuckle features ... --json` prints")
    return found


def _configuration(given: argparse.Namespace, limits: SandboxLimits) -> Configuration:
    memory_bytes = limits.memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Configuration(
        instance_type="local",
        provider="local",
        workers=given.workers,
        batch_size=given.batch_size or 0,
        vcpu=limits.cpu_cores or len(os.sched_getaffinity(0)),
        memory_gb=memory_bytes / _GIB,
        network_gbps=(limits.network_bits_per_s or 0) / 1e9,
        accelerator=canonical_name(given.accelerator or ""),
        accelerators=1 if given.accelerator else 0,
    )


def _script(argv: tuple[str, ...]) -> str:
    """The first Python file's name, else that of a module run with -m, else the program's."""
    script = next((word for word in argv if word.endswith(".py")), None)
    if script is not None:
        return Path(script).stem
    if "-m" in argv[:-1]:
        return argv[argv.index("-m") + 1]
    return Path(argv[0]).name


def _plain(name: str) -> str:
    return _UNUSUAL.sub("-", name).strip("-")[:80] or "run"


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < 1 << 20:
        raise argparse.ArgumentTypeError(f"{text}: no program runs in less than 1 MiB")
    return size


def _pattern(text: str) -> re.Pattern[str] | None:
    """A regular expression; None for a counter's name, in which numbers are ``#``, and for nothing."""
    return re.compile(text) if text and "#" not in text else None


def _progress(text: str) -> str:
    try:
        pattern = _pattern(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None
    if not text or (pattern is not None and not 1 <= pattern.groups <= _MAX_GROUPS):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no counter as shown, with # for its number, and no regular expression with a group for the "
            "count, and perhaps one for the whole"
        )
    return text


def _run_name(text: str) -> str:
    if not text or _plain(text) != text:
        raise argparse.ArgumentTypeError(f"{text!r}: letters, digits, '_' and '-', at most 80")
    return text


def _first_problem(error: ValidationError) -> str:
    detail = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in detail["loc"])
    return f"features: {place}: {detail['msg']}"
