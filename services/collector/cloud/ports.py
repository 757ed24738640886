"""What the collector needs of a cloud, as Protocols: adapters and test doubles implement them. All of it blocks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from services.collector.cloud.cloud_jobs import CloudJob
from services.collector.cloud.cost_settlement import BilledCost
from services.collector.cloud.grid import JobRequest


class CloudError(Exception):
    """The cloud could not do it; the subclass says what that means. The text is for people."""


class CloudBusyError(CloudError):
    """A quota or rate limit: nothing was done, the same later may work."""


class CloudUncertainError(CloudError):
    """No answer, or one that says nothing: it may have been done."""


class CloudRefusedError(CloudError):
    """Not done, and the same again would not be done either."""


class CloudForbiddenError(CloudRefusedError):
    """No credentials, no rights, no such project: nothing else will work either."""


class TrainingCloud(Protocol):
    """Where training jobs run. Methods raise `CloudError` only."""

    def jobs(self, *, since: datetime | None = None, job: str | None = None, grid: str | None = None) -> list[CloudJob]:
        """Jobs that carry our label: created since, of one label value, of one grid."""

    def create(self, request: JobRequest) -> CloudJob:
        """Submit a job. The cloud does not refuse a second one of the same label."""


class Billing(Protocol):
    """What jobs cost. Methods raise `CloudError` only."""

    def costs(self, since: datetime) -> dict[str, BilledCost]:
        """Costs of everything used since, by label value, in US dollars, credits added."""

    def estimated_bytes(self, since: datetime) -> int:
        """What `costs` would read: it is billed by that."""


def single(jobs: Iterable[CloudJob], job: str) -> CloudJob | None:
    """The one job of a label value, or None; of several (someone else submitted it, too) the first that was created."""
    return min((found for found in jobs if found.job == job), key=lambda found: found.created_ns, default=None)
