"""What people ask for: checked, stored in the log, answered. A refusal names what is wrong with the request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from schemas.codec import encode
from schemas.message import Message
from schemas.scheduling import (
    ELASTIC_IS_SIMULATED,
    ControlReply,
    ControlRequest,
    JobAction,
    JobControlled,
    JobSpec,
    SubmitReply,
    SubmitRequest,
)
from schemas.streams import JOB_SPECS
from services._runtime.bus.api import Bus, BusError, Delivery, RequestRefusedError
from services.scheduler.advising import Advising
from services.scheduler.core.explain import duration
from services.scheduler.core.jobs import Job, Phase
from services.scheduler.core.live import Live
from services.scheduler.core.placement import Room
from services.scheduler.core.state import State
from services.scheduler.deciding import Inbox, Request
from services.scheduler.leading import Lead
from services.scheduler.queries import Queries

MAX_SPEC_BYTES: Final = 32 << 10
"""As stored: what a spec may need in an entry of the log, and, with the names of all nodes, in an order."""
MAX_NAME_CHARACTERS: Final = 59
"""Of a job: with ``job-`` before it, it names an application."""

MessageT = TypeVar("MessageT", bound=Message)


class Intake:
    """Answers `submit` and `control` while this replica leads."""

    def __init__(self, bus: Bus, lead: Lead, inbox: Inbox, advising: Advising, queries: Queries) -> None:
        self._bus = bus
        self._lead = lead
        self._inbox = inbox
        self._advising = advising
        self._queries = queries
        self.arriving: set[str] = set()
        """Names of jobs that are being submitted: their specs are kept."""

    async def submit(self, delivery: Delivery) -> Message:
        """Store a job; it waits from then on."""
        request = expect(delivery.message, SubmitRequest)
        spec = request.spec
        warnings = self._check(spec)
        self.arriving.add(spec.job)
        try:
            submitted = await self._advising.submitted(spec, tuple(self._lead.state.nodes.values()))
            await self._keep(spec)
            await self._store(Request(request.by, _future(), submitted=submitted))
        finally:
            self.arriving.discard(spec.job)
        job = await self._queries.queued_soon(spec.job)
        waiting = sum(live.job.phase is Phase.WAITING for live in self._lead.state.live.values())
        before = waiting - (spec.job in self._lead.state.live and job.phase.value == Phase.WAITING.value)
        return SubmitReply(job=job, waiting_before=max(0, before), warnings=warnings)

    async def control(self, delivery: Delivery) -> Message:
        """Cancel, preempt or release a job, drain or undrain a node."""
        request = expect(delivery.message, ControlRequest)
        given = [bool(request.job or request.action), bool(request.drain), bool(request.undrain)]
        if given.count(True) != 1 or bool(request.job) != bool(request.action):
            raise RequestRefusedError(400, "give one of: a job and an action, a node to drain, a node to undrain")
        if request.action is not None:
            return await self._control_job(request, request.action)
        return await self._control_node(request)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _check(self, spec: JobSpec) -> tuple[str, ...]:
        """Warnings.

        Raises:
            RequestRefusedError: it cannot be run.
        """
        state = self._lead.state
        if spec.job in state.live or spec.job in self.arriving:
            raise RequestRefusedError(409, f"a job named {spec.job} has not ended yet: choose another name")
        if len(spec.job) > MAX_NAME_CHARACTERS:
            raise RequestRefusedError(400, f"job: a name has at most {MAX_NAME_CHARACTERS} characters")
        if not spec.directory.startswith("/"):
            raise RequestRefusedError(400, f"directory: {spec.directory!r} is not absolute")
        if bool(spec.model) != bool(spec.batch):
            raise RequestRefusedError(400, "model and batch: a plan needs both")
        if spec.is_elastic:
            raise RequestRefusedError(400, ELASTIC_IS_SIMULATED)
        if spec.model and spec.slots != 1:
            raise RequestRefusedError(400, "slots: each worker of a job with a model has one device, so one slot")
        size_bytes = len(encode(spec))
        if size_bytes > MAX_SPEC_BYTES:
            raise RequestRefusedError(400, f"the job's specification has {size_bytes} bytes, at most {MAX_SPEC_BYTES}")
        return tuple(_warnings(spec, state))

    async def _keep(self, spec: JobSpec) -> None:
        try:
            await self._bus.bucket(JOB_SPECS).put(spec.job, spec)
        except BusError as error:
            raise RequestRefusedError(503, f"the job was not stored: {error}") from error

    async def _control_job(self, request: ControlRequest, action: JobAction) -> ControlReply:
        state = self._lead.state
        live = state.live.get(request.job)
        if live is None and request.job in state.finished:
            raise RequestRefusedError(409, f"{request.job} has {state.finished[request.job].outcome} already")
        if live is None:
            raise RequestRefusedError(404, f"no job is named {request.job}")
        not_before_ns = self._lead.time_ns() + round(1e9 * request.for_s) if request.for_s else 0
        done = _CONTROLS[action](live, request.for_s)
        controlled = JobControlled(job=live.job.name, action=action, not_before_ns=not_before_ns)
        await self._store(Request(request.by, _future(), controlled=controlled))
        return ControlReply(done=done)

    async def _control_node(self, request: ControlRequest) -> ControlReply:
        name, state = request.drain or request.undrain, self._lead.state
        if name not in state.nodes and name not in state.drained:
            raise RequestRefusedError(404, f"no node is named {name}")
        if bool(request.drain) == (name in state.drained):
            return ControlReply(done=f"{name} is {'drained' if request.drain else 'in use'} already")
        drained, undrained = ((name,), ()) if request.drain else ((), (name,))
        await self._store(Request(request.by, _future(), drained=drained, undrained=undrained))
        if request.undrain:
            return ControlReply(done=f"{name} is in use again")
        running = [live.job.name for live in state.live.values() if live.workers and name in live.job.nodes]
        stay = f"; {' '.join(running[:20])} may stay until they end or are preempted" if running else ""
        return ControlReply(done=f"nothing is started on {name} any more{stay}")

    async def _store(self, request: Request) -> None:
        await self._inbox.put(request)


def _cancel(live: Live, _for_s: float) -> str:
    name = live.job.name
    return f"{name} stops, and ends then" if live.workers else f"{name} is cancelled"


def _preempt(live: Live, for_s: float) -> str:
    name = live.job.name
    later = (
        f"is not started again for {duration(for_s)}"
        if for_s
        else "goes on when its turn comes, after those that wait now"
    )
    if not live.workers and not for_s:
        raise RequestRefusedError(409, f"{name} holds no slots; with a time it is kept from starting for so long")
    return f"{name} gives up its slots, and {later}" if live.workers else f"{name} {later}"


def _release(live: Live, _for_s: float) -> str:
    if not live.not_before_s:
        raise RequestRefusedError(409, f"{live.job.name} is not kept from starting by a request")
    return f"{live.job.name} may start again"


_CONTROLS: Final[dict[JobAction, Callable[[Live, float], str]]] = {
    JobAction.CANCEL: _cancel,
    JobAction.PREEMPT: _preempt,
    JobAction.RELEASE: _release,
}


def _warnings(spec: JobSpec, state: State) -> list[str]:
    """What this cluster cannot give: other nodes may come, so it is stored all the same."""
    if not state.nodes:
        return ["no runner has registered yet: the job waits for one"]
    return [*_too_large(spec, state), *_too_few_slots(spec, state)]


def _too_large(spec: JobSpec, state: State) -> list[str]:
    """Slots are what a node gives; memory and cores beyond what it has are a limit that is never reached."""
    found = []
    memory_bytes = max(node.memory_bytes for node in state.nodes.values())
    cores = max(node.cores for node in state.nodes.values())
    if memory_bytes and (spec.memory_bytes or 0) > memory_bytes:
        gib = 1 << 30
        found.append(
            f"memory: each worker may use {(spec.memory_bytes or 0) / gib:.4g}GiB, and the largest node has "
            f"{memory_bytes / gib:.3g}GiB: it is killed where it needs more"
        )
    if cores and (spec.cpu_cores or 0) > cores:
        found.append(f"cpu: each worker may use {spec.cpu_cores:g} cores, and the largest node has {cores:g}")
    return found


def _too_few_slots(spec: JobSpec, state: State) -> list[str]:
    slots = sum(node.slots for node in state.nodes.values())
    if spec.all_slots > slots:
        return [f"needs {spec.all_slots} slots, the cluster has {slots}: it will never start"]
    largest = max(node.slots for node in state.nodes.values())
    if spec.slots > largest:
        return [f"each worker needs {spec.slots} slots on one node, the largest has {largest}: it will never start"]
    job = Job(spec.job, spec.all_slots, 0.0, slots_per_worker=spec.slots)
    workers = f"{spec.workers} workers of {spec.slots} slots"
    if Room(replace(place, available=True) for place in state.places).find(job) is None:
        evenly = " with as many on each" if any(place.equal_workers for place in state.places) else ""
        return [f"no place for {workers}{evenly}, not even on empty nodes: it will never start"]
    if Room(state.places).find(job) is None:
        return [f"no place for {workers} on the nodes that can be used now"]
    return []


def expect(message: Message, model: type[MessageT]) -> MessageT:
    """The message, which has to be of this type.

    Raises:
        RequestRefusedError: it is another one.
    """
    if not isinstance(message, model):
        raise RequestRefusedError(400, f"unexpected {message.type_name}")
    return message


def _future() -> asyncio.Future[int]:
    return asyncio.get_running_loop().create_future()
