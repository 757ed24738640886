"""Requests to a service that may not answer yet."""

from __future__ import annotations

import asyncio
import time

from schemas.message import Message
from schemas.service import Endpoint
from services._runtime.bus.api import Bus, BusUnavailableError, NoResponderError


async def ask_until_answered(bus: Bus, endpoint: Endpoint, request: Message, *, within_s: float = 60.0) -> Message:
    """The reply; asked again while no replica has the endpoint, or the bus is away."""
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            return await bus.request(endpoint.template.subject(bus.root), request, timeout_s=within_s)
        except (NoResponderError, BusUnavailableError):
            assert time.monotonic() < deadline_s, f"no {endpoint.service} answers"
            await asyncio.sleep(0.05)
