"""Ports to a cloud, as Protocols. All methods block."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from services.collector.cloud.cloud_jobs import CloudJob
from services.collector.cloud.cost_settlement import BilledCost
from services.collector.cloud.grid import JobRequest


class CloudError(Exception):
    """A request to the cloud failed; the subclass gives the kind, the text the reason."""


class CloudBusyError(CloudError):
    """A quota or rate limit: nothing was done, a retry may succeed."""


class CloudUncertainError(CloudError):
    """No answer, or an inconclusive one: the request may have been carried out."""


class CloudRefusedError(CloudError):
    """Rejected; a retry would be, too."""


class CloudForbiddenError(CloudRefusedError):
    """No credentials, no permission, no such project: all requests would fail."""


class TrainingCloud(Protocol):
    """Where training jobs run. Methods raise `CloudError` only."""

    def jobs(self, *, since: datetime | None = None, job: str | None = None, grid: str | None = None) -> list[CloudJob]:
        """Jobs with the collector's label: created since, of one label value, of one grid."""

    def create(self, request: JobRequest) -> CloudJob:
        """Submit a job. The cloud does not refuse a second one of the same label."""


class Billing(Protocol):
    """Costs of jobs. Methods raise `CloudError` only."""

    def costs(self, since: datetime) -> dict[str, BilledCost]:
        """Costs of everything used since, by label value, in US dollars, credits added."""

    def estimated_bytes(self, since: datetime) -> int:
        """Bytes that `costs` would read, by which it is billed."""


def single(jobs: Iterable[CloudJob], job: str) -> CloudJob | None:
    """The job of a label value, or None; of several (submitted twice) the first one created."""
    return min((found for found in jobs if found.job == job), key=lambda found: found.created_ns, default=None)
