"""Vertex AI's JobService on the wire (gRPC), with a life for its jobs and the failures of the real one.

It speaks the package's own message classes and knows what our code uses: create, get, list (filters joined with AND,
pages), cancel. Time stands still until a test moves it. What it does not have: authentication, quotas by region and
machine type, and the real service's limits on names and labels.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
from google.cloud.aiplatform_v1.types import (
    CancelCustomJobRequest,
    CreateCustomJobRequest,
    CustomJob,
    GetCustomJobRequest,
    JobState,
    ListCustomJobsRequest,
    ListCustomJobsResponse,
)
from google.protobuf import empty_pb2
from google.rpc import status_pb2

SERVICE = "/google.cloud.aiplatform.v1.JobService/"
_TERM = re.compile(r'(?P<field>[a-z_.-]+[a-z0-9_-]*)\s*(?P<operator>>=|:|=)\s*"?(?P<value>[^"]*)"?')
ENDED = frozenset(
    {JobState.JOB_STATE_SUCCEEDED, JobState.JOB_STATE_FAILED, JobState.JOB_STATE_CANCELLED, JobState.JOB_STATE_EXPIRED}
)
START = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
"""When the cloud begins: yesterday, because collectors in processes of their own know what time it is."""


@dataclass(slots=True)
class Failure:
    """What goes wrong with the next calls of a method."""

    code: grpc.StatusCode
    text: str
    times: int = 1
    after: bool = False
    """The call is carried out; only its answer is lost."""


@dataclass(slots=True)
class Fate:
    """What becomes of a job."""

    queued_s: float = 60.0
    runs_s: float = 600.0
    state: JobState = JobState.JOB_STATE_SUCCEEDED
    error: str = ""
    code: int = 0


@dataclass(slots=True)
class FakeVertex:
    """The service's state. `fate` decides about each job when it is created."""

    fate: Callable[[CustomJob], Fate] = lambda _job: Fate()
    now: datetime = START
    max_active: int = 1_000
    """More are refused with RESOURCE_EXHAUSTED."""
    list_lag_s: float = 0.0
    """Seconds until a job shows in lists."""
    page_size: int = 100
    half_finished: set[str] = field(default_factory=set)
    """Display names of jobs whose end_time is not told yet, although they have ended."""
    jobs: dict[str, CustomJob] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    slow: threading.Event | None = None
    """Calls wait for it, until their deadline."""
    _fates: dict[str, Fate] = field(default_factory=dict)
    _failures: dict[str, list[Failure]] = field(default_factory=lambda: defaultdict(list))
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def fail(self, method: str, code: grpc.StatusCode, text: str = "as told", **how: Any) -> None:
        """Let the next calls of a method fail."""
        self._failures[method].append(Failure(code, text, **how))

    def fail_no_more(self, method: str) -> None:
        """Let the next calls of a method succeed."""
        self._failures[method].clear()

    def advance(self, seconds: float) -> None:
        """Let time pass: jobs start and end."""
        with self._lock:
            self.now += timedelta(seconds=seconds)
            for name, job in self.jobs.items():
                self._live(job, self._fates[name])

    def labelled(self, key: str, value: str) -> list[CustomJob]:
        """Jobs with a label."""
        return [job for job in self.jobs.values() if job.labels.get(key) == value]

    def _live(self, job: CustomJob, fate: Fate) -> None:
        if job.state in ENDED:
            return
        starts = job.create_time + timedelta(seconds=fate.queued_s)
        ends = starts + timedelta(seconds=fate.runs_s)
        if self.now < starts:
            job.state = JobState.JOB_STATE_PENDING
            return
        job.start_time = starts
        job.state = JobState.JOB_STATE_RUNNING
        if self.now >= ends:
            job.state, job.end_time, job.update_time = fate.state, ends, ends
            if fate.error:
                job.error = status_pb2.Status(code=fate.code, message=fate.error)

    # -- the wire ----------------------------------------------------------------------------------------------

    def handler(self, method: str) -> Any:
        """The RPC handler of a method, or None."""
        known = {
            "CreateCustomJob": (self._create, CreateCustomJobRequest, CustomJob.serialize),
            "GetCustomJob": (self._get, GetCustomJobRequest, CustomJob.serialize),
            "ListCustomJobs": (self._list, ListCustomJobsRequest, ListCustomJobsResponse.serialize),
            "CancelCustomJob": (self._cancel, CancelCustomJobRequest, empty_pb2.Empty.SerializeToString),
        }
        if method not in known:
            return None
        work, request_type, serialize = known[method]

        def answer(request: Any, context: Any) -> Any:
            self.calls.append(method)
            failure = self._next_failure(method)
            if self.slow is not None and not self.slow.wait(context.time_remaining()):
                context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "too slow")
            if failure is not None and not failure.after:
                context.abort(failure.code, failure.text)
            with self._lock:
                reply = work(request, context)
            if failure is not None:
                context.abort(failure.code, failure.text)
            return reply

        return grpc.unary_unary_rpc_method_handler(answer, request_type.deserialize, serialize)

    def _next_failure(self, method: str) -> Failure | None:
        waiting = self._failures[method]
        if not waiting:
            return None
        waiting[0].times -= 1
        return waiting.pop(0) if waiting[0].times <= 0 else waiting[0]

    def _create(self, request: CreateCustomJobRequest, context: Any) -> CustomJob:
        if sum(job.state not in ENDED for job in self.jobs.values()) >= self.max_active:
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "The following quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_cpus",
            )
        pools = request.custom_job.job_spec.worker_pool_specs
        if not pools or pools[0].replica_count != 1:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first worker pool must have one replica")
        job = CustomJob(request.custom_job)
        job.name = f"{request.parent}/customJobs/{len(self.jobs) + 1}"
        job.create_time = job.update_time = self.now
        job.state = JobState.JOB_STATE_QUEUED
        self.jobs[job.name] = job
        self._fates[job.name] = self.fate(job)
        return job

    def _get(self, request: GetCustomJobRequest, context: Any) -> CustomJob:
        if request.name not in self.jobs:
            context.abort(grpc.StatusCode.NOT_FOUND, f"{request.name} is not found")
        return self._shown(self.jobs[request.name])

    def _cancel(self, request: CancelCustomJobRequest, context: Any) -> Any:
        job = self._get(GetCustomJobRequest(name=request.name), context)
        self.jobs[job.name].state = JobState.JOB_STATE_CANCELLED
        self.jobs[job.name].end_time = self.now
        return empty_pb2.Empty()

    def _list(self, request: ListCustomJobsRequest, context: Any) -> ListCustomJobsResponse:
        try:
            found = [job for job in self._listed(request.parent) if _fits(job, request.filter)]
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        found.sort(key=lambda job: job.create_time, reverse=True)
        start = int(request.page_token or 0)
        end = start + min(request.page_size or self.page_size, self.page_size)
        token = str(end) if end < len(found) else ""
        return ListCustomJobsResponse(custom_jobs=found[start:end], next_page_token=token)

    def _listed(self, parent: str) -> Iterator[CustomJob]:
        for job in self.jobs.values():
            visible = job.create_time + timedelta(seconds=self.list_lag_s) <= self.now
            if visible and job.name.startswith(f"{parent}/"):
                yield self._shown(job)

    def _shown(self, job: CustomJob) -> CustomJob:
        shown = CustomJob(job)
        if shown.display_name in self.half_finished and shown.state in ENDED:
            del shown.end_time
        return shown


def _fits(job: CustomJob, text: str) -> bool:
    """Whether a job passes a filter, of which only terms joined with AND are understood."""
    for part in filter(None, text.split(" AND ")):
        term = _TERM.fullmatch(part.strip())
        if term is None:
            raise ValueError(f"invalid filter: {part!r}")
        name, operator, value = term["field"], term["operator"], term["value"]
        if name.startswith("labels."):
            label = job.labels.get(name.removeprefix("labels."))
            passes = label is not None if (operator, value) == (":", "*") else operator == "=" and label == value
        elif name == "create_time" and operator == ">=":
            passes = job.create_time >= datetime.fromisoformat(value)
        elif name == "state" and operator == "=":
            passes = job.state.name == value
        else:
            raise ValueError(f"invalid filter: {part!r}")
        if not passes:
            return False
    return True


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, fake: FakeVertex) -> None:
        self._fake = fake

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        return self._fake.handler(method.removeprefix(SERVICE)) if method.startswith(SERVICE) else None


class VertexServer:
    """A `FakeVertex` on a port."""

    def __init__(self, fake: FakeVertex, host: str = "127.0.0.1") -> None:
        self._host = host
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((_Handler(fake),))
        self.port = self._server.add_insecure_port(f"{host}:0")
        self._server.start()

    @property
    def endpoint(self) -> str:
        """For `CollectorSettings.vertex_endpoint`."""
        return f"http://{self._host}:{self.port}"

    def stop(self) -> None:
        """Refuse connections."""
        self._server.stop(None).wait(60)
