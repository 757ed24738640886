"""Records of training jobs as stored on the bus, for commands."""

from __future__ import annotations

import asyncio

from schemas.jobs import JobRecord
from schemas.streams import JOB_STREAM
from schemas.subjects import JOB_RECORDS, SubjectTemplate
from services._runtime.bus.api import Delivery
from services._runtime.bus.nats_history import read_stored
from services._runtime.command.connection import connected, find_server


def read_records(server: str | None, context: str | None, job: str | None = None) -> list[JobRecord]:
    """The records on the bus, each job once; of one job, or of all.

    Raises:
        UnavailableError: no server answers.
    """
    return asyncio.run(_read(server, context, job))


async def _read(server: str | None, context: str | None, job: str | None) -> list[JobRecord]:
    found: dict[str, JobRecord] = {}

    def take(delivery: Delivery) -> None:
        if isinstance(delivery.message, JobRecord):
            found.setdefault(delivery.message.job, delivery.message)

    async with connected(find_server(server, context)) as bus:
        template: SubjectTemplate = JOB_RECORDS
        pattern = template.pattern(bus.root, job=job) if job else template.pattern(bus.root)
        await read_stored(bus, JOB_STREAM, pattern, 0.0, take)
    return sorted(found.values(), key=lambda one: (one.dataset, one.task.task, one.job))
