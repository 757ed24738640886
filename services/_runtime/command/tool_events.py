"""What a tool writes: events as JSON lines on standard output, sentences for people on standard error."""

from __future__ import annotations

import json
import sys

from services._runtime.exit_code import plain_error


def emit(event: str, **fields: object) -> None:
    """Write one event line to standard output, at once."""
    sys.stdout.write(json.dumps({"event": event, **fields}, allow_nan=False) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Write a line of text to standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def emit_error(text: str, exit_code: int, **details: object) -> int:
    """The event that ends a tool; returns the exit code."""
    emit("error", **plain_error(text, exit_code), **details)
    return exit_code
