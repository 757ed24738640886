"""Cost tracker: observations of costs that are not final yet, on disk, because polls are hours apart."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import RootModel, ValidationError

from services._runtime.atomic_file import write_atomically
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
        write_atomically(self._path, _File(self.seen).model_dump_json(by_alias=True), to_disk=True)
