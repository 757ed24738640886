"""What torchrun itself writes once a rank has failed: its log, a traceback of its own frames, each rank's exit code."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_FIRST_LINE: Final = "torch/distributed/elastic/multiprocessing/api.py"
"""Of its log, as it ends the other ranks; what follows is its own."""
_RANK: Final = re.compile(r"^\s+rank\s+: (\d+)")
_EXIT_CODE: Final = re.compile(r"^\s+exitcode\s+: (-?\d+)")


@dataclass(slots=True)
class TorchrunReport:
    """Takes the lines of standard error, in order."""

    exit_codes: dict[int, int] = field(default_factory=dict)
    """By rank; negative: of a signal."""
    _has_begun: bool = False
    _rank: int | None = None

    def take(self, line: str) -> bool:
        """Whether the line is torchrun's report."""
        self._has_begun |= _FIRST_LINE in line
        if not self._has_begun:
            return False
        if found := _RANK.match(line):
            self._rank = int(found[1])
        elif (found := _EXIT_CODE.match(line)) and self._rank is not None:
            self.exit_codes[self._rank] = int(found[1])
        return True
