"""State of one NATS connection: the client, options, counters, open subscriptions and watches."""

from __future__ import annotations

from typing import Protocol

import nats.errors
from nats.js import JetStreamContext

from services._runtime.bus.api import BusUnavailableError
from services._runtime.bus.dispatch import Dispatch
from services._runtime.bus.nats_connection import Connection
from services._runtime.bus.nats_failures import describe
from services._runtime.bus.options import BusOptions
from services._runtime.telemetry.logging import log_once


class Stoppable(Protocol):
    """A subscription of any kind."""

    async def stop(self) -> None:
        """Handle received messages and end."""


class Refreshable(Protocol):
    """A reader that must be synchronised after a reconnect."""

    def synchronise_soon(self) -> None:
        """Synchronise as soon as possible."""


class NatsSession:
    """One connection, possibly not established yet."""

    def __init__(self, options: BusOptions) -> None:
        self.options = options
        self.root = options.root
        self.dispatch = Dispatch()
        self.connection: Connection = Connection()
        self._jetstream: JetStreamContext | None = None
        self.subscriptions: set[Stoppable] = set()
        self.watches: set[Refreshable] = set()

    @property
    def jetstream(self) -> JetStreamContext:
        """Raises `BusUnavailableError` before the first connection."""
        self._require_first_connection()
        assert self._jetstream is not None
        return self._jetstream

    @property
    def connected(self) -> bool:
        """Whether the connection to the server is up."""
        return bool(self.connection.is_connected)

    def _require_first_connection(self) -> None:
        if self._jetstream is None:
            raise BusUnavailableError(f"no connection yet to NATS at {self.options.address}")

    def send_reply(self, reply_subject: str, data: bytes) -> None:
        """Reply to a request; dropped and counted if the connection is down."""
        try:
            self.connection.send_now(reply_subject, data)
        except nats.errors.Error as error:
            self.dispatch.counts["dropped_disconnected"] += 1
            log_once(self.dispatch.log.warning, self.dispatch.limiter, "reply_not_sent", error=describe(error))
