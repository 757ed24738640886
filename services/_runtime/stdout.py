"""Standard output whose reader (``head``, ``less``) may close the pipe early."""

from __future__ import annotations

import os
import sys


def print_text(text: str) -> None:
    """Print text and a line end; ends silently if the pipe is closed."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def discard_stdout() -> None:
    """After a broken pipe: redirect stdout to /dev/null, or the interpreter reports the error again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
