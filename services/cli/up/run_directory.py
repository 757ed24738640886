"""Where one `turnbuckle up` keeps its logs: held while it runs, so that a second one does not write over them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from services._runtime.command.errors import CommandError
from services._runtime.file_lock import lock_present_file

RUN_DIRECTORY: Final = "turnbuckle-run"
_TRIED: Final = 100
_LOCK: Final = ".lock"


@contextmanager
def hold_run_directory(store: Path | None) -> Iterator[Path]:
    """The directory that the user chose, or ``turnbuckle-run``, or the next free one: ``turnbuckle-run-2``.

    Raises:
        CommandError: it cannot be made, or another `turnbuckle up` uses the one that the user chose.
    """
    default = Path(RUN_DIRECTORY)
    candidates = [default, *(default.with_name(f"{RUN_DIRECTORY}-{number}") for number in range(2, _TRIED))]
    for candidate in candidates if store is None else [store]:
        directory = candidate.absolute()
        if (lock := _hold(directory)) is not None:
            try:
                yield directory
            finally:
                os.close(lock)
            return
    raise CommandError(f"{store or default} is used by another `turnbuckle up`; choose another one with --store DIR")


def _hold(directory: Path) -> int | None:
    """Make it and lock it; None: another process holds it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return lock_present_file(directory / _LOCK)
    except OSError as error:
        raise CommandError(f"{directory} cannot be made or locked: {error.strerror}; use --store DIR") from error
