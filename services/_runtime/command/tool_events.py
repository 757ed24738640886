"""What a tool writes: events as JSON lines on standard output, sentences for people on standard error."""

from __future__ import annotations

import json
import sys


def emit(event: str, **fields: object) -> None:
    """Write one event line to standard output, at once."""
    sys.stdout.write(json.dumps({"event": event, **fields}, allow_nan=False) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Write a line of text to standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def emit_error(text: str, exit_code: int) -> int:
    """The event that ends a tool; returns the exit code."""
    emit("error", message=text, exit_code=exit_code)
    return exit_code
