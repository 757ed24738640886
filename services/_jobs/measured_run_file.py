"""Measured runs of plans, a JSON line each: `turnbuckle train` appends them, `turnbuckle plan` reads them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from schemas.measured_runs import MeasuredRun
from services._runtime.command.errors import BadFileError, MissingFileError
from services._runtime.state_home import state_home

MAX_BYTES: Final = 64 << 20
"""More than 100,000 runs."""


def default_file() -> Path:
    """Of this user, for all jobs."""
    return state_home() / "measured-runs.jsonl"


def append_run(file: Path, run: MeasuredRun) -> None:
    """Add a line in one write, so that trainings which end together do not mix theirs.

    Behind a line without an end, which a crash while it was written leaves, it begins a new one.

    Raises:
        OSError: the file cannot be made or written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        ahead = b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""
        os.write(descriptor, ahead + run.model_dump_json().encode() + b"\n")
    finally:
        os.close(descriptor)


def read_runs(file: Path, refused: Callable[[str], None]) -> list[MeasuredRun]:
    """The runs of a file.

    Args:
        file: that `append_run` has written.
        refused: takes a sentence, with the place, for each line that is no measured run; the others count.

    Raises:
        MissingFileError: the file does not exist.
        BadFileError: it cannot be read, or is larger than `MAX_BYTES`.
    """
    try:
        if file.stat().st_size > MAX_BYTES:
            raise BadFileError(f"{file} is larger than {MAX_BYTES >> 20} MiB: keep its last lines (tail -n 1000)")
        lines = file.read_bytes().splitlines()
    except FileNotFoundError as error:
        raise MissingFileError(f"{file} cannot be read: {error.strerror}") from error
    except OSError as error:
        raise BadFileError(f"{file} cannot be read: {error.strerror}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(MeasuredRun.model_validate_json(line))
        except ValidationError as error:
            detail = error.errors(include_input=False, include_url=False)[0]
            place = "".join(f"{step}: " for step in detail["loc"])
            what = detail["msg"].removeprefix("Value error, ")
            refused(f"{file}:{number} is left out, it is no measured run: {place}{what}")
    return found
