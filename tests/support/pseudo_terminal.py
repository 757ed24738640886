"""A pseudo terminal, and what a program has drawn on it."""

from __future__ import annotations

import codecs
import os
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self, TextIO

OTHER_SCREEN: Final = "\x1b[?1049h"
OTHER_SCREEN_LEFT: Final = "\x1b[?1049l"
_SIZE: Final = (50, 240)
"""Rows and columns."""


class PseudoTerminal:
    """Its near end is `file`, which programs take for a terminal."""

    def __init__(self, reader: int, file: TextIO) -> None:
        self._reader = reader
        self.file: Final = file
        self._text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[Self]:
        """Until the end of the block."""
        reader, writer = os.openpty()
        termios.tcsetwinsize(writer, _SIZE)
        os.set_blocking(reader, False)
        try:
            with os.fdopen(writer, "w", encoding="utf-8") as file:
                yield cls(reader, file)
        finally:
            os.close(reader)

    def text(self) -> str:
        """All that was drawn until now, control characters included."""
        try:
            while part := os.read(self._reader, 1 << 16):
                self._text += self._decoder.decode(part)
        except BlockingIOError:
            pass
        return self._text

    def left_behind(self) -> str:
        """What stays once a program has left the terminal's other screen; empty: it has not."""
        return self.text().rpartition(OTHER_SCREEN_LEFT)[2] if OTHER_SCREEN_LEFT in self.text() else ""
