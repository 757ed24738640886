"""What is announced, read from its bucket; a note where an application is not."""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
from typing import Final

from schemas.apps import AppSpec
from schemas.streams import APPS
from services._runtime.bus.api import Bus
from services._runtime.bus.options import BusOptions
from services._runtime.command.connection import connected
from services._runtime.command.errors import NoPermissionError, UnavailableError

_CONNECT_TIMEOUT_S: Final = 1.0


async def read_apps(bus: Bus) -> dict[str, AppSpec]:
    """The applications that are announced.

    Raises:
        BusError: the bucket is not there, or cannot be read.
    """
    entries = await bus.bucket(APPS).entries()
    return {key: entry.message for key, entry in entries.items() if isinstance(entry.message, AppSpec)}


def unmanaged_note(app: str, options: BusOptions) -> str | None:
    """A note if the processes of an application will not be managed, or if that cannot be determined.

    A note and no refusal: applications may be announced after their processes have started.
    """
    try:
        known = asyncio.run(_announced(dataclasses.replace(options, connect_deadline_s=_CONNECT_TIMEOUT_S)))
    except (UnavailableError, NoPermissionError) as error:
        return f"whether application {app!r} is announced is not known: {error}"
    return None if app in known else unmanaged_sentence(app, known)


def unmanaged_sentence(app: str, known: set[str]) -> str:
    """What happens to a process of an application that is not announced, and what was probably meant."""
    near = difflib.get_close_matches(app, sorted(known), n=1)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    return (
        f"application {app!r} is not announced{meant}: the process runs unmanaged, under its first limits only, "
        "until `turnbuckle apply` announces it"
    )


async def _announced(options: BusOptions) -> set[str]:
    async with connected(options) as bus:
        return set(await bus.bucket(APPS).entries())
