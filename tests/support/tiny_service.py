"""The smallest service: counts messages, answers one command, and misbehaves on demand. ``python -m`` runs it."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, ClassVar

from pydantic import Field, SecretStr

from schemas.message import Message
from schemas.subjects import CFS, LIMIT_UPDATES
from services._runtime.bus.api import Delivery
from services._runtime.service.app import Runtime, main
from services._runtime.service.settings import CommonSettings
from services._runtime.settings_error import UnusableSettingsError
from tests.support.bus_lab import node_info


class TinySettings(CommonSettings):
    """Settings of the smallest service."""

    service: ClassVar[str] = "tiny"

    node: Annotated[str, Field(description="name of this host")] = "n1"
    fault: Annotated[str, Field(description="what to do wrong: crash, refuse, block, hang, start")] = ""
    rates: Annotated[tuple[float, ...], Field(description="rates, messages per second")] = (1.0,)
    key: Annotated[SecretStr | None, Field(description="a secret")] = None


class TinyService:
    """The smallest service there can be."""

    name: ClassVar[str] = "tiny"
    version: ClassVar[str] = "0.1.0"
    settings_class: ClassVar[type[CommonSettings]] = TinySettings

    def __init__(self, runtime: Runtime[TinySettings]) -> None:
        self.runtime = runtime
        self.received = 0
        self.stopped = False
        self._subscriptions: list[Any] = []

    async def start(self) -> None:
        """Subscribe and answer."""
        bus, fault = self.runtime.bus, self.runtime.settings.fault
        if fault == "start":
            raise ValueError("cannot start")
        self._subscriptions.append(await bus.subscribe(CFS.pattern(bus.root), self._count))
        command = LIMIT_UPDATES.subject(bus.root, node=self.runtime.settings.node)
        self._subscriptions.append(await bus.serve(command, self._answer))
        if fault:
            self.runtime.spawn(self._misbehave(fault), name="fault")

    async def _misbehave(self, fault: str) -> None:
        if fault == "crash":
            raise ValueError("crashed as told")
        if fault == "refuse":
            raise UnusableSettingsError("the name is taken: choose another one")
        if fault == "block":
            time.sleep(60)  # noqa: ASYNC251 - the fault itself
        await asyncio.Event().wait()

    def _count(self, _delivery: Delivery) -> None:
        self.received += 1

    async def _answer(self, _delivery: Delivery) -> Message:
        return node_info(self.received)

    async def stop(self) -> None:
        """Stop receiving."""
        if self.runtime.settings.fault == "hang":
            await asyncio.Event().wait()
        for subscription in self._subscriptions:
            await subscription.stop()
        self.stopped = True

    def not_ready(self) -> str | None:
        """Ready unless told otherwise."""
        return "told not to be" if self.runtime.settings.fault == "unready" else None


if __name__ == "__main__":
    main(TinyService)
