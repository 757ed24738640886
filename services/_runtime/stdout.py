"""Output whose reader (``head``, ``less``, a terminal) may go away early."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def print_text(text: str) -> None:
    """Print text and a line end; ends silently if the pipe is closed."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def discard_stdout() -> None:
    """After a broken pipe: redirect stdout to /dev/null, or the interpreter reports the error again at exit."""
    discard(sys.stdout)


def discard(stream: TextIO) -> None:
    """Redirect the descriptor of a stream whose reader is gone to /dev/null, for as long as this process lives."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
