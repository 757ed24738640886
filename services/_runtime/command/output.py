"""What commands print: results on stdout, everything else on stderr, so that `--json` can be piped.

With `--json` an error is JSON too, and stands on stderr alone: see `errors_as_json`.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TextIO

from rich.console import Console, RenderableType
from rich.markup import escape

from services._runtime.exit_code import ExitCode, json_error

PIPE_COLUMNS: Final = 160


@dataclass(slots=True)
class _JsonErrors:
    """What stderr gets while errors are JSON."""

    notes: io.StringIO = field(default_factory=io.StringIO)
    failed: bool = False


_active: list[_JsonErrors] = []
"""At most one: a command is one process."""


@contextmanager
def errors_as_json(*, wanted: bool) -> Iterator[None]:
    """Within it `print_error` prints one JSON object, and stderr holds nothing else then.

    So notes, warnings and progress wait: they are printed at the end, and dropped where there was an error.
    """
    if not wanted or _active:
        yield
        return
    _active.append(current := _JsonErrors())
    try:
        yield
    finally:
        _active.remove(current)
        if not current.failed:
            sys.stderr.write(current.notes.getvalue())
            sys.stderr.flush()


def color_system() -> Literal["auto"] | None:
    """For rich: None, no styles at all, where ``NO_COLOR`` is set and not empty (https://no-color.org).

    Rich's own ``no_color`` leaves bold and dim.
    """
    return None if os.environ.get("NO_COLOR") else "auto"


def stdout_console() -> Console:
    """A console for results. Made when needed, so that a test's captured stdout is used. A pipe gets wide tables."""
    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    return Console(soft_wrap=True, highlight=False, width=width, color_system=color_system())


def stderr_console() -> Console:
    """A console for progress, hints and errors; with `errors_as_json` they wait for the end."""
    held = _active[0].notes if _active else None
    return Console(file=held, stderr=True, soft_wrap=True, highlight=False, color_system=color_system())


@contextmanager
def full_screen(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """What it gives draws in place on the terminal's other screen; the last picture stays, above the shell's prompt."""
    from rich.live import Live  # noqa: PLC0415 - quick --help

    last: list[RenderableType] = []
    live = Live(console=console, auto_refresh=False, screen=True, vertical_overflow="crop")

    def show(picture: RenderableType) -> None:
        last[:] = [picture]
        live.update(picture, refresh=True)

    try:
        with live:
            yield show
    finally:
        for picture in last:
            console.print(picture)


def print_json(value: Any, *, indent: int | None = 2, file: TextIO | None = None) -> None:
    """Write one JSON document to stdout, at once, so that a reader at the other end of a pipe sees it."""
    out = file or sys.stdout
    out.write(json.dumps(value, indent=indent) + "\n")
    out.flush()


def print_line(text: str) -> None:
    """Write one line to stdout, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_note(message: str) -> None:
    """Print a note on stderr."""
    stderr_console().print(escape(message))


def print_warning(message: str) -> None:
    """Print a warning on stderr."""
    stderr_console().print(f"[bold yellow]warning:[/] {escape(message)}")


def print_error(message: str, exit_code: int = ExitCode.FAILED) -> None:
    """Print the error that ends the command on stderr: a sentence, or a JSON object with `errors_as_json`."""
    if _active:
        _active[0].failed = True
        sys.stderr.write(json_error(message, exit_code))
        sys.stderr.flush()
        return
    stderr_console().print(f"[bold red]error:[/] {escape(message)}")


def format_bytes(count: float) -> str:
    """Bytes for people: ``512 B``, ``38 MiB``, ``1.5 GiB``; ``unlimited`` below zero."""
    if count < 0:
        return "unlimited"
    if count < 1024:
        return f"{count:.0f} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if size >= 100 else f"{size:.3g} {unit}"
    raise AssertionError("the last unit takes everything")


def format_size(count: int) -> str:
    """A configured size, exactly: ``1.5 GiB``, but ``954 MiB (1000000000 B)``."""
    from schemas.sizes import MAX_SIZE_BYTES, parse_size  # noqa: PLC0415 - quick --help: it brings pydantic

    text = format_bytes(count)
    if count < 0 or (count <= MAX_SIZE_BYTES and parse_size(text) == count):
        return text
    return f"{text} ({count} B)"


def format_duration(duration_us: float) -> str:
    """Microseconds for people: ``850 us``, ``1.2 ms``, ``2.1 s``."""
    if duration_us < 1_000:
        return f"{duration_us:.0f} us"
    return f"{duration_us / 1e3:.3g} ms" if duration_us < 999_500 else f"{duration_us / 1e6:.3g} s"


def format_cores(quota_us: float, period_us: int = 100_000) -> str:
    """Microseconds per period as cores: ``0.35``; ``unlimited`` below zero."""
    return "unlimited" if quota_us < 0 else f"{quota_us / period_us:.2f}"
