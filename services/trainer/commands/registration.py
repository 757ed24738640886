"""An elastic training's registration on the bus: one coordinator of a name, and the generation that it has ordered.

It stands in KV bucket `trainings`, written over its own revision only: before each change of workers, and every
`HEARTBEAT_S`. A coordinator that was paused while another one took the name finds that out with its next write. Where
the bus does not answer, a change is made without it, `WRITE_WITHIN_S` later: training depends on no bus.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from schemas.plans import Plan
from schemas.streams import TRAININGS
from schemas.trainings import TrainingGeneration
from services._runtime.bus.api import Bus, BusError, NotPermittedError
from services._runtime.bus.name_registration import HEARTBEAT_S, RETRY_S, Holder, NameTakenError, Registration
from services._runtime.clock import Clock, SystemClock
from services._runtime.command.errors import CommandError
from services._runtime.state_home import state_home
from services.trainer.commands.publishing import BusPublisher, Publisher

CONNECTED_WITHIN_S: Final = 3.0
"""At the start; later it is registered by a heartbeat."""
WRITE_WITHIN_S: Final = 2.0
_ROLE: Final = "training"


class TrainingTakenError(CommandError):
    """Another coordinator has this training; the message says which, and what to do."""


class TrainingRegistration:
    """Of one coordinator."""

    def __init__(self, bus: Bus, plan: Plan, clock: Clock, directory: Path) -> None:
        """Nothing is written before `claim`.

        Args:
            bus: where other coordinators are.
            plan: its job is the training's name.
            clock: of this host.
            directory: for lock files: after a kill on this host, the next start need not wait for the expiry.
        """
        self._bus, self._clock = bus, clock
        self._holder = Holder(directory, _ROLE, plan.job)
        self._registration = Registration(bus, TRAININGS, plan.job, clock)
        self._writing = asyncio.Lock()
        now_ns = clock.time_ns()
        self._info = TrainingGeneration(
            job=plan.job,
            node=socket.gethostname(),
            pid=os.getpid(),
            incarnation=now_ns,
            time_ns=now_ns,
            plan=plan.plan,
            holder=self._holder.token,
        )

    async def claim(self, note: Callable[[str], None]) -> None:
        """Return once the name is this coordinator's; or where the bus does not answer or refuses, which is noted.

        Raises:
            TrainingTakenError: another coordinator is at work.
        """
        deadline_s = self._clock.monotonic() + CONNECTED_WITHIN_S
        is_noted = False
        while True:
            try:
                if await self._write():
                    return
            except NotPermittedError as error:
                remedy = "run `turnbuckle nats config` of this version, then `nats-server --signal reload`"
                note(f"the training is not registered: {error}; {remedy}")
                return
            except (BusError, TimeoutError) as error:
                if self._clock.monotonic() >= deadline_s:
                    reason = str(error) or f"no answer within {WRITE_WITHIN_S:g} s"
                    note(f"the training is not registered: {reason}; another coordinator of it would not be refused")
                    return
            else:
                if not is_noted:
                    is_noted = True
                    note(f"{await self._other()}: waiting until that is renewed or expires")
            await self._clock.sleep_until(self._clock.monotonic() + RETRY_S)

    async def record(self, number: int, workers: int, first_step: int, *, is_formed: bool) -> None:
        """Write a generation; one that the bus does not take in time is written by the next heartbeat.

        Raises:
            TrainingTakenError: another coordinator has taken the name.
        """
        generation = {"number": number, "workers": workers, "first_step": first_step, "is_formed": is_formed}
        self._info = self._info.model_copy(update=generation)
        with suppress(BusError, TimeoutError):
            await self._write()

    async def renew(self) -> None:
        """Write what was recorded last, again and again; cancel to stop.

        Raises:
            TrainingTakenError: another coordinator has taken the name.
        """
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + HEARTBEAT_S)
            with suppress(BusError, TimeoutError):
                await self._write()

    async def release(self) -> None:
        """Give the name back; where that does not work it expires."""
        with suppress(BusError, TimeoutError):
            async with asyncio.timeout(WRITE_WITHIN_S):
                await self._registration.release()
        self._holder.release()

    async def _write(self) -> bool:
        """Whether the name is held now. Writes follow one another: each is over the revision of the one before."""
        async with self._writing:
            info = self._info.model_copy(update={"time_ns": self._clock.time_ns()})
            try:
                async with asyncio.timeout(WRITE_WITHIN_S):
                    return await self._registration.hold(info)
            except NameTakenError as error:
                remedy = "end that one, or give this one another --name"
                raise TrainingTakenError(f"{await self._other()}: {remedy}") from error

    async def _other(self) -> str:
        """Who has the name, as far as that can be read."""
        job = self._info.job
        with suppress(BusError, TimeoutError):
            async with asyncio.timeout(WRITE_WITHIN_S):
                entry = await self._bus.bucket(TRAININGS).get(job)
            found = None if entry is None else entry.message
            if isinstance(found, TrainingGeneration):
                return f"training {job} has a coordinator already, process {found.pid} on {found.node}"
        return f"training {job} has a coordinator already"


@asynccontextmanager
async def registered(
    publisher: Publisher | None, plan: Plan, note: Callable[[str], None], directory: Path | None = None
) -> AsyncIterator[TrainingRegistration | None]:
    """A claimed registration, given back at the end; None: there is no bus, or the scheduler has this as a job.

    ``directory``: of lock files, by default below the user's state directory.

    Raises:
        TrainingTakenError: another coordinator is at work.
    """
    if not isinstance(publisher, BusPublisher):
        yield None
        return
    made = TrainingRegistration(publisher.bus, plan, SystemClock(), directory or state_home() / "trainings")
    try:
        await made.claim(note)
        yield made
    finally:
        await made.release()
