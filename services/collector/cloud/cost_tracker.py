"""Cost tracker: observations of costs that are not final yet, on disk, because polls are hours apart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pydantic import RootModel, ValidationError

from services.collector.cloud.cost_settlement import Observation

FILE_NAME: Final = "costs.json"


class _File(RootModel[dict[str, Observation]]):
    """The file's content."""


class CostTracker:
    """Observations by job. If the file is lost, polls are counted anew."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        try:
            self.seen = _File.model_validate_json(self._path.read_bytes()).root
        except (OSError, ValidationError):
            self.seen = {}

    def store(self) -> None:
        """Write the file atomically.

        Raises:
            OSError: it cannot be written.
        """
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(_File(self.seen).model_dump_json(by_alias=True))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        finally:
            temporary.unlink(missing_ok=True)
