"""Record files that an advisor reads besides the bus: the shipped one, and others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from schemas.jobs import JobRecord
from schemas.runs import RunProfile
from services._runtime.record_files import JobFile, JobFileError, read_job_file
from services._runtime.settings_error import UnusableSettingsError
from services.advisor.settings import SHIPPED

DATA: Final = Path(__file__).parent / "data"


def read_datasets(names: Sequence[str]) -> JobFile:
    """All records and local runs of the files named.

    Raises:
        UnusableSettingsError: one cannot be read, or there is no shipped data set.
    """
    records: list[JobRecord] = []
    profiles: list[RunProfile] = []
    for path in (one for name in names for one in _paths(name)):
        try:
            found = read_job_file(path)
        except JobFileError as error:
            raise UnusableSettingsError(f"TURNBUCKLE_ADVISOR__DATASETS: {error}") from error
        records += found.records
        profiles += found.profiles
    return JobFile(tuple(records), tuple(profiles))


def _paths(name: str) -> list[Path]:
    if name != SHIPPED:
        return [Path(name).expanduser()]
    if not (found := sorted(DATA.glob("*.parquet"))):
        raise UnusableSettingsError(
            "TURNBUCKLE_ADVISOR__DATASETS=shipped: this installation ships no dataset: name a file of your own"
        )
    return found
