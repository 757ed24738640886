"""Settings of the collector. Every field is a variable ``TURNBUCKLE_COLLECTOR__<FIELD>``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from services._runtime.service.settings import CommonSettings

_TABLE: Final = re.compile(r"(?:[A-Za-z0-9.:-]+\.)?[A-Za-z0-9_]+\.[A-Za-z0-9_-]+")
_LABEL: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9.\[\]:-]+")


def check_table(text: str) -> str:
    """A BigQuery table as ``project.dataset.table`` (or ``dataset.table``): it goes into SQL as a name.

    Raises:
        ValueError: it is not a table name.
    """
    if not _TABLE.fullmatch(text):
        raise ValueError(f"{text!r} is no table: write project.dataset.table")
    return text


def _check_label(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise ValueError(f"{text!r} is no label key: lower-case letters, digits, '_' and '-', a letter first")
    return text


def _check_endpoint(text: str) -> str:
    if not _ENDPOINT.fullmatch(text):
        raise ValueError(f"{text!r} is no endpoint: write such as https://us-central1-aiplatform.googleapis.com")
    return text


Endpoint = Annotated[str, AfterValidator(_check_endpoint)]


class CollectorSettings(CommonSettings):
    """Settings of a collector."""

    service: ClassVar[str] = "collector"
    renamed: ClassVar[Mapping[str, str]] = {
        "settle_looks": "cost_stable_polls",
        "settle_hours": "cost_min_age_hours",
        "give_up_hours": "cost_timeout_hours",
    }

    project: Annotated[
        str | None, Field(pattern=r"^[a-z0-9:.-]+$", description="Google Cloud project of the jobs; unset: no cloud")
    ] = None
    region: Annotated[
        str, Field(pattern=r"^[a-z0-9-]+$", description="Google Cloud region that the jobs run in, such as us-central1")
    ] = "us-central1"
    billing_table: Annotated[
        Annotated[str, AfterValidator(check_table)] | None,
        Field(description="BigQuery table or view of the billing export; unset: costs are derived from prices"),
    ] = None
    label: Annotated[
        str, AfterValidator(_check_label), Field(description="label key that identifies jobs and their costs")
    ] = "turnbuckle_job"
    credentials: Annotated[
        SecretStr | None,
        Field(description="service account key as JSON; unset: Application Default Credentials"),
    ] = None
    vertex_endpoint: Annotated[
        Endpoint | None,
        Field(description="other address of Vertex AI; http:// is for emulators: no TLS, no credentials"),
    ] = None
    billing_endpoint: Annotated[
        Endpoint | None, Field(description="other address of BigQuery; http:// is for emulators: no credentials")
    ] = None
    poll_s: Annotated[float, Field(ge=0.05, le=86_400, description="seconds between polls of Vertex AI")] = 60.0
    billing_poll_s: Annotated[
        float,
        Field(ge=0.05, le=86_400, description="seconds between polls of the billing export (each query is billed)"),
    ] = 3_600.0
    cost_stable_polls: Annotated[
        int,
        Field(
            ge=1,
            le=1_000,
            description="consecutive polls in which a job's billed cost has to be unchanged before it is final",
        ),
    ] = 3
    cost_min_age_hours: Annotated[
        float, Field(ge=0, le=720, description="hours after a job's end before its billed cost can be final")
    ] = 24.0
    cost_timeout_hours: Annotated[
        float,
        Field(ge=0, le=8_760, description="hours after a job's end after which its cost is derived from the price"),
    ] = 168.0
    lookback_days: Annotated[
        float, Field(gt=0, le=3_650, description="days after which a job that was never seen is ignored")
    ] = 60.0
    scheduled_jobs: Annotated[
        bool, Field(description="record jobs of the scheduler when they have ended, for the advisor to learn from")
    ] = True
    directory: Annotated[
        Path | None, Field(description="directory of the journal; unset: below the user's state directory")
    ] = None

    @model_validator(mode="after")
    def _check_hours(self) -> Self:
        if self.cost_timeout_hours < self.cost_min_age_hours:
            raise ValueError("cost_timeout_hours is less than cost_min_age_hours: no cost would ever be read")
        return self
