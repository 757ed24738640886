"""The kubeoperator's wiring: objects of Kubernetes by kopf, applications on the bus, status back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, ClassVar

from schemas.kubeoperator import DeclaredApplication, KubeoperatorStateReply, KubeoperatorStateRequest
from schemas.message import Message
from schemas.queries import QueryError
from schemas.services.kubeoperator import KUBEOPERATOR_STATE
from services._runtime.bus.api import BusError, Delivery, Subscription
from services._runtime.service.app import Runtime
from services._runtime.service.settings import CommonSettings
from services.kubeoperator.announcements import Announcements
from services.kubeoperator.core.declaration import (
    Declaration,
    Refusal,
    application_source,
    namespace_source,
    read_application,
    read_namespace,
)
from services.kubeoperator.core.status import Seen, status_of
from services.kubeoperator.kopf_thread import KopfThread
from services.kubeoperator.observations import Observations, rfc3339
from services.kubeoperator.settings import KubeoperatorSettings

Outcome = Declaration | Refusal


class Kubeoperator:
    """Announces the applications that a Kubernetes cluster declares; `services.kubeoperator.handlers.Reconciler`."""

    name: ClassVar[str] = "kubeoperator"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = KubeoperatorSettings

    def __init__(self, runtime: Runtime[KubeoperatorSettings]) -> None:
        self._runtime = runtime
        self._log = runtime.log
        self._reconciles = runtime.telemetry.counter("turnbuckle_kubeoperator_reconciles_total")
        self._written = runtime.telemetry.counter("turnbuckle_kubeoperator_announcements_total")
        self._announcements = Announcements(runtime.bus, self._count_write)
        self._observations = Observations(runtime.bus)
        self._outcomes: dict[str, Outcome] = {}
        """By object."""
        self._namespaces: dict[str, dict[str, str]] = {}
        """Annotations of those that declare an application, or did when last seen."""
        self._subscriptions: list[Subscription] = []
        self._kopf: KopfThread | None = None

    async def start(self) -> None:
        """Listen and answer on the bus, then watch the API server."""
        telemetry = self._runtime.telemetry
        telemetry.observe("turnbuckle_kubeoperator_applications", lambda: len(self._outcomes))
        telemetry.observe("turnbuckle_kubeoperator_refused_applications", lambda: len(self._refusals()))
        self._subscriptions = await self._observations.subscribe()
        self._subscriptions.append(
            await self._runtime.bus.serve_queries(
                self.name, self.version, "applications that Kubernetes declares", {KUBEOPERATOR_STATE: self.state}
            )
        )
        self._kopf = KopfThread(self, self._runtime.settings.status_interval_s)
        self._kopf.start()
        self._runtime.spawn(self._watch_kopf(self._kopf), name="kopf")
        self._runtime.spawn(self._refresh(), name="refresh")

    async def stop(self) -> None:
        """Watch and answer no more."""
        if self._kopf is not None:
            await self._kopf.stop()
        for subscription in self._subscriptions:
            await subscription.stop()

    def not_ready(self) -> str | None:
        """What keeps it from working, or None."""
        return None if self._kopf is not None and self._kopf.ready.is_set() else "the API server was not reached yet"

    async def state(self, delivery: Delivery) -> Message:
        """Objects and their applications as of the last reconcile."""
        if not isinstance(delivery.message, KubeoperatorStateRequest):
            return QueryError(code=400, message=f"unexpected {delivery.message.type_name}")
        return KubeoperatorStateReply(
            applications=tuple(_declared(source, outcome) for source, outcome in sorted(self._outcomes.items()))
        )

    # -- what handlers call ------------------------------------------------------------------------------------

    async def reconcile_application(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Announce what an Application declares, or withdraw what it declared before; its status."""
        metadata = body["metadata"]
        namespace, name, generation = metadata["namespace"], metadata["name"], int(metadata.get("generation", 0))
        outcome = read_application(namespace, name, body.get("spec") or {}, self._runtime.settings.namespace)
        outcome = await self._carry_out(application_source(namespace, name), outcome)
        seen = self._observations.of(outcome.spec.name) if isinstance(outcome, Declaration) else Seen()
        now = rfc3339(self._runtime.clock.time_ns())
        return status_of(outcome, seen, body.get("status") or {}, generation, now)

    async def withdraw_application(self, namespace: str, name: str) -> None:
        """Withdraw what an Application declared."""
        await self._withdraw({application_source(namespace, name)})

    async def reconcile_namespace(self, name: str, annotations: Mapping[str, str] | None) -> Refusal | None:
        """Announce what a Namespace declares, or withdraw that; returns a refusal once."""
        source = namespace_source(name)
        outcome = None if annotations is None else read_namespace(name, annotations)
        if outcome is None:
            known = self._namespaces.pop(name, None) is not None or source in self._outcomes
            if known or source in await self._announcements.sources():
                await self._withdraw({source})
            return None
        self._namespaces[name] = dict(annotations or {})
        before = self._outcomes.get(source)
        outcome = await self._carry_out(source, outcome)
        return outcome if isinstance(outcome, Refusal) and outcome != before else None

    async def sweep(self, applications: set[tuple[str, str]], namespaces: set[str]) -> None:
        """Withdraw what objects declared that are no more: gone while no operator ran, or without its finalizer."""
        there = {application_source(*each) for each in applications} | {namespace_source(each) for each in namespaces}
        if gone := (await self._announcements.sources() | self._outcomes.keys()) - there:
            await self._withdraw(gone)

    async def _carry_out(self, source: str, outcome: Outcome) -> Outcome:
        self._reconciles.value += 1
        if isinstance(outcome, Declaration):
            outcome = await self._announcements.announce(outcome)
        else:
            await self._announcements.withdraw([source])
        if outcome != self._outcomes.get(source):
            refused = f"{outcome.reason}: {outcome.message}" if isinstance(outcome, Refusal) else ""
            self._log.info("declared", object=source, refused=refused)
        self._outcomes[source] = outcome
        return outcome

    async def _withdraw(self, sources: set[str]) -> None:
        await self._announcements.withdraw(sources)
        for source in sources:
            self._outcomes.pop(source, None)
            self._log.info("withdrawn", object=source)

    # -- beside them -------------------------------------------------------------------------------------------

    async def _refresh(self) -> None:
        """Ask the allocators, and repeat what Namespaces declare: no handler does that for them."""
        clock, interval_s = self._runtime.clock, self._runtime.settings.status_interval_s
        while True:
            await self._observations.refresh()
            for name, noted in list(self._namespaces.items()):
                try:
                    await self.reconcile_namespace(name, noted)
                except BusError as error:
                    self._log.warning("not_announced", object=namespace_source(name), error=str(error))
            await clock.sleep_until(clock.monotonic() + interval_s)

    async def _watch_kopf(self, kopf: KopfThread) -> None:
        error = await asyncio.shield(kopf.ended)
        if kopf.stopping:
            return
        raise RuntimeError(f"kopf has ended: {error!r}") from error

    def _count_write(self) -> None:
        self._written.value += 1

    def _refusals(self) -> list[Refusal]:
        return [outcome for outcome in self._outcomes.values() if isinstance(outcome, Refusal)]


def _declared(source: str, outcome: Outcome) -> DeclaredApplication:
    if isinstance(outcome, Refusal):
        return DeclaredApplication(declared_by=source, app=outcome.app, refused=f"{outcome.reason}: {outcome.message}")
    return DeclaredApplication(declared_by=source, app=outcome.spec.name)
