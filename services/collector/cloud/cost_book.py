"""What was seen of costs that are not settled yet, on disk: looks hours apart outlive the process that looks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pydantic import RootModel, ValidationError

from services.collector.cloud.cost_settlement import Observation

FILE_NAME: Final = "costs.json"


class _Pages(RootModel[dict[str, Observation]]):
    """The file's content."""


class CostBook:
    """Observations by job. Losing the file costs time, not truth: the looks are counted anew."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        try:
            self.seen = _Pages.model_validate_json(self._path.read_bytes()).root
        except (OSError, ValidationError):
            self.seen = {}

    def store(self) -> None:
        """Write all of it, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(_Pages(self.seen).model_dump_json())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        finally:
            temporary.unlink(missing_ok=True)
