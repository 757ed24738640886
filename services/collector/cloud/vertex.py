"""Vertex AI CustomJobs through Google's low-level client (thesis 4.4.2). The transport is given: gRPC, or a test's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import google.auth.exceptions
import grpc  # type: ignore[import-untyped]  # grpcio ships no types
from google.api_core import exceptions as google_errors
from pydantic import ValidationError

from schemas.accelerators import without_attached
from services._runtime.skipped_import import bare_packages
from services.collector.cloud.cloud_jobs import CloudJob, CloudState
from services.collector.cloud.grid import JobPlan, JobRequest, vertex_accelerator_type
from services.collector.cloud.ports import (
    CloudBusyError,
    CloudForbiddenError,
    CloudRefusedError,
    CloudUncertainError,
)

# Clients of 40 other services and their messages come with these packages: more than a second of processor time.
with bare_packages("google.cloud.aiplatform_v1", "google.cloud.aiplatform_v1.types"):
    from google.cloud.aiplatform_v1.services.job_service import JobServiceClient
    from google.cloud.aiplatform_v1.services.job_service.transports.base import JobServiceTransport
    from google.cloud.aiplatform_v1.services.job_service.transports.grpc import JobServiceGrpcTransport
    from google.cloud.aiplatform_v1.types.custom_job import CustomJob, CustomJobSpec, WorkerPoolSpec
    from google.cloud.aiplatform_v1.types.job_state import JobState as VertexState

PLAN_VARIABLE: Final = "TURNBUCKLE_JOB"
"""Environment variable of the job's containers that carries the `JobPlan`: labels are too short for features."""
GRID_LABEL: Final = "turnbuckle_grid"
_CALL_S: Final = 30.0
_PAGE: Final = 100

_STATES: Final = {
    VertexState.JOB_STATE_UNSPECIFIED: CloudState.WAITING,
    VertexState.JOB_STATE_QUEUED: CloudState.WAITING,
    VertexState.JOB_STATE_PENDING: CloudState.WAITING,
    VertexState.JOB_STATE_PAUSED: CloudState.WAITING,
    VertexState.JOB_STATE_RUNNING: CloudState.RUNNING,
    VertexState.JOB_STATE_UPDATING: CloudState.RUNNING,
    VertexState.JOB_STATE_CANCELLING: CloudState.RUNNING,
    VertexState.JOB_STATE_SUCCEEDED: CloudState.SUCCEEDED,
    VertexState.JOB_STATE_PARTIALLY_SUCCEEDED: CloudState.PARTLY_SUCCEEDED,
    VertexState.JOB_STATE_FAILED: CloudState.FAILED,
    VertexState.JOB_STATE_CANCELLED: CloudState.CANCELLED,
    VertexState.JOB_STATE_EXPIRED: CloudState.EXPIRED,
}
_FORBIDDEN: Final = (google_errors.Unauthorized, google_errors.Forbidden, google_errors.NotFound)
_REFUSED: Final = (
    google_errors.BadRequest,
    google_errors.MethodNotImplemented,
    google_errors.Conflict,
    google_errors.RequestRangeNotSatisfiable,
)


class VertexJobs:
    """`services.collector.cloud.ports.TrainingCloud` on one project and region."""

    def __init__(self, transport: JobServiceTransport, project: str, region: str, label: str) -> None:
        self._client = JobServiceClient(transport=transport)
        self._parent = f"projects/{project}/locations/{region}"
        self._label = label

    def jobs(self, *, since: datetime | None = None, job: str | None = None, grid: str | None = None) -> list[CloudJob]:
        """Jobs with the collector's label."""
        terms = [f'labels.{self._label}="{job}"' if job else f"labels.{self._label}:*"]
        terms += [f'labels.{GRID_LABEL}="{grid}"'] if grid else []
        terms += [f'create_time>="{since.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"'] if since else []
        request = {"parent": self._parent, "filter": " AND ".join(terms), "page_size": _PAGE}
        with as_cloud_errors(f"list jobs of {self._parent}"):
            pager = self._client.list_custom_jobs(request=request, timeout=_CALL_S)
            return [_as_cloud_job(found, self._label) for found in pager]

    def create(self, request: JobRequest) -> CloudJob:
        """Submit a job."""
        with as_cloud_errors(f"submit {request.plan.job}"):
            made = self._client.create_custom_job(
                parent=self._parent, custom_job=_as_custom_job(request, self._label), timeout=_CALL_S
            )
        return _as_cloud_job(made, self._label)

    def close(self) -> None:
        """Close the connection."""
        transport: Any = self._client.transport
        transport.close()


def open_transport(region: str, endpoint: str | None, credentials: Any | None) -> JobServiceTransport:
    """The gRPC transport of a region, or to another endpoint; ``http://`` means neither TLS nor credentials.

    Raises:
        CloudForbiddenError: there are no credentials.
    """
    if endpoint is not None and endpoint.startswith("http://"):
        return JobServiceGrpcTransport(channel=grpc.insecure_channel(endpoint.removeprefix("http://")))
    host = (endpoint or f"https://{region}-aiplatform.googleapis.com").removeprefix("https://")
    with as_cloud_errors(f"connect to {host}"):
        return JobServiceGrpcTransport(host=host, credentials=credentials)


@contextmanager
def as_cloud_errors(action: str) -> Iterator[None]:
    """Turn Google's errors into `services.collector.cloud.ports.CloudError`, by kind."""
    try:
        yield
    except google_errors.TooManyRequests as error:  # ResourceExhausted is one
        raise CloudBusyError(f"{action}: {_text(error)}") from error
    except _FORBIDDEN as error:
        if "ratelimit" in _reasons(error) or "quotaexceeded" in _reasons(error):
            raise CloudBusyError(f"{action}: {_text(error)}") from error
        raise CloudForbiddenError(f"{action}: {_text(error)}") from error
    except _REFUSED as error:
        if isinstance(error, google_errors.Aborted):
            raise CloudUncertainError(f"{action}: {_text(error)}") from error
        raise CloudRefusedError(f"{action}: {_text(error)}") from error
    except google_errors.GoogleAPIError as error:
        raise CloudUncertainError(f"{action}: {_text(error)}") from error
    except google.auth.exceptions.TransportError as error:
        raise CloudUncertainError(f"{action}: {_text(error)}") from error
    except google.auth.exceptions.GoogleAuthError as error:
        raise CloudForbiddenError(f"{action}: {_text(error)}") from error
    except OSError as error:  # what requests raises is one
        raise CloudUncertainError(f"{action}: {_text(error)}") from error


def _text(error: BaseException) -> str:
    message = getattr(error, "message", None) or str(error)
    return str(message).partition("\n")[0][:300] or type(error).__name__


def _reasons(error: BaseException) -> str:
    """BigQuery answers 403 for rate limits, too; the reason distinguishes them."""
    details = getattr(error, "errors", None) or ()
    return " ".join(str(detail.get("reason", "")) for detail in details if isinstance(detail, dict)).lower()


# -- jobs ------------------------------------------------------------------------------------------------------


def _as_custom_job(request: JobRequest, label: str) -> CustomJob:
    """Pool 0 is the chief alone, pool 1 all other workers, as Vertex AI requires."""
    workers = request.plan.configuration.workers
    pools = [_pool(request, 1)] + ([_pool(request, workers - 1)] if workers > 1 else [])
    spec = CustomJobSpec(
        worker_pool_specs=pools,
        scheduling={
            "timeout": timedelta(hours=request.timeout_hours),
            "disable_retries": True,  # a restarted job's time would be two jobs' time
        },
        service_account=request.service_account,
        network=request.network,
    )
    labels = {label: request.plan.job, GRID_LABEL: request.plan.grid}
    return CustomJob(display_name=request.plan.display_name, job_spec=spec, labels=labels)


def _pool(request: JobRequest, replicas: int) -> WorkerPoolSpec:
    container, place = request.container, request.plan.configuration
    machine: dict[str, Any] = {"machine_type": without_attached(place.instance_type)[0]}
    if accelerator_type := vertex_accelerator_type(place):
        machine |= {"accelerator_type": accelerator_type, "accelerator_count": place.accelerators}
    variables = {**container.env, PLAN_VARIABLE: request.plan.model_dump_json()}
    return WorkerPoolSpec(
        machine_spec=machine,
        replica_count=replicas,
        disk_spec={"boot_disk_type": request.disk.type, "boot_disk_size_gb": request.disk.size_gb},
        container_spec={
            "image_uri": container.image_uri,
            "command": list(container.command),
            "args": list(container.args),
            "env": [{"name": name, "value": value} for name, value in variables.items()],
        },
    )


def _as_cloud_job(job: CustomJob, label: str) -> CloudJob:
    pools = list(job.job_spec.worker_pool_specs)
    machine = pools[0].machine_spec if pools else None
    accelerators = machine.accelerator_count if machine is not None else 0
    accelerator_type = getattr(machine.accelerator_type, "name", "") if machine is not None else ""
    return CloudJob(
        name=job.name,
        job=job.labels.get(label, ""),
        display_name=job.display_name,
        state=_STATES.get(job.state, CloudState.WAITING),
        machine_type=machine.machine_type if machine is not None else "",
        accelerator_type=accelerator_type if accelerators else "",
        accelerators=accelerators,
        workers=sum(pool.replica_count for pool in pools),
        created_ns=_ns(job.create_time),
        started_ns=_ns(job.start_time),
        ended_ns=_ns(job.end_time),
        error=job.error.message,
        error_code=job.error.code,
        plan=_plan(pools),
    )


def _ns(time: Any) -> int:
    """Nanoseconds; 0 for a timestamp that is not set (None)."""
    return 0 if time is None else int(time.timestamp_pb().ToNanoseconds())


def _plan(pools: list[WorkerPoolSpec]) -> JobPlan | None:
    """The job's plan; None also for an invalid variable: the job is recorded without features then."""
    for variable in pools[0].container_spec.env if pools else ():
        if variable.name == PLAN_VARIABLE:
            try:
                return JobPlan.model_validate_json(variable.value)
            except ValidationError:
                return None
    return None
