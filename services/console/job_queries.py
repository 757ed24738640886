"""What a page asks about training jobs: the queue, once for all pages that show it, and one job's history."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from schemas.codec import CodecError, encode
from schemas.message import Message
from schemas.scheduling import JobExplainRequest, QueueRequest
from schemas.service import Endpoint
from schemas.services.scheduler import SCHEDULER_EXPLAIN, SCHEDULER_QUEUE
from services._runtime.bus.api import Bus, BusError, NoResponderError
from services.console.messages import console_message

QUEUE_AGE_S: Final = 1.5
"""So old an answer is given to other pages, too; pages ask every two seconds."""
QUEUE_BYTES_PER_S: Final = 128 << 10
"""A long answer is given for longer, as scheduler, console and page take time by its length (docs/decisions/0101): the
scheduler is asked every two seconds up to 256 KiB, every four with 500 jobs of 900 bytes, every eight with 1 MiB."""
_TIMEOUT_S: Final = 5.0


class JobQueries:
    """Asks the leading scheduler when a page asks: without a page that shows the queue it costs nothing."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._asking = asyncio.Lock()
        self._queue = b""
        self._asked_s = -QUEUE_AGE_S

    async def queue(self, _: Mapping[str, str]) -> bytes:
        """Jobs and nodes: a QueueReply, or why there is none."""
        async with self._asking:
            if time.monotonic() - self._asked_s >= max(QUEUE_AGE_S, len(self._queue) / QUEUE_BYTES_PER_S):
                self._queue = await self._ask(SCHEDULER_QUEUE, QueueRequest())
                self._asked_s = time.monotonic()
            return self._queue

    async def job(self, query: Mapping[str, str]) -> bytes:
        """The history of the query's job: a JobExplainReply, or why there is none."""
        try:
            request = JobExplainRequest(job=query.get("job", ""))
        except ValidationError:
            return _no_answer("no job has such a name")
        return await self._ask(SCHEDULER_EXPLAIN, request)

    async def _ask(self, endpoint: Endpoint, request: Message) -> bytes:
        try:
            subject = endpoint.template.subject(self._bus.root)
            return encode(await self._bus.request(subject, request, timeout_s=_TIMEOUT_S))
        except NoResponderError:
            return _no_answer("no scheduler answers on this bus", absent=True)
        except (BusError, CodecError) as error:
            return _no_answer(str(error))


def _no_answer(reason: str, *, absent: bool = False) -> bytes:
    """``absent``: no scheduler is on the bus."""
    return console_message("NoAnswer", error=reason, absent=absent)
