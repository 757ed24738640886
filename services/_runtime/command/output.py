"""What commands print: results on stdout, everything else on stderr, so that `--json` can be piped."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

PIPE_COLUMNS: Final = 160


def stdout_console() -> Console:
    """A console for results. Made when needed, so that a test's captured stdout is used. A pipe gets wide tables."""
    return Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)


def stderr_console() -> Console:
    """A console for progress, hints and errors."""
    return Console(stderr=True, soft_wrap=True, highlight=False)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Write one JSON document to stdout, at once, so that a reader at the other end of a pipe sees it."""
    sys.stdout.write(json.dumps(value, indent=indent) + "\n")
    sys.stdout.flush()


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


def print_error(message: str) -> None:
    """Print an error on stderr."""
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
    from schemas.sizes import parse_size  # noqa: PLC0415 - quick --help: it brings pydantic

    text = format_bytes(count)
    return text if count < 0 or parse_size(text) == count else f"{text} ({count} B)"


def format_duration(duration_us: float) -> str:
    """Microseconds for people: ``850 us``, ``1.2 ms``, ``2.1 s``."""
    if duration_us < 1_000:
        return f"{duration_us:.0f} us"
    return f"{duration_us / 1e3:.3g} ms" if duration_us < 999_500 else f"{duration_us / 1e6:.3g} s"


def format_cores(quota_us: float, period_us: int = 100_000) -> str:
    """Microseconds per period as cores: ``0.35``; ``unlimited`` below zero."""
    return "unlimited" if quota_us < 0 else f"{quota_us / period_us:.2f}"
