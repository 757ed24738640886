"""What kopf calls: handlers of Applications and Namespaces, which ask the service and write what it answers.

They run in kopf's own loop and thread (`kopf_thread`); the service answers in its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import kopf

from services._runtime.bus.api import BusError
from services.kubeoperator.core.declaration import Refusal

GROUP: Final = "turnbuckle.dev"
VERSION: Final = "v1alpha1"
PLURAL: Final = "applications"
FINALIZER: Final = f"{GROUP}/withdraw"
_RETRY_S: Final = 5.0


class Reconciler(Protocol):
    """The service, as handlers call it; every method may raise `BusError`."""

    async def reconcile_application(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Announce what an Application declares; its status."""

    async def withdraw_application(self, namespace: str, name: str) -> None:
        """Withdraw what an Application declared."""

    async def reconcile_namespace(self, name: str, annotations: Mapping[str, str] | None) -> Refusal | None:
        """Announce what a Namespace declares; None: it is gone. Returns why it is refused, the first time."""

    async def sweep(self, applications: set[tuple[str, str]], namespaces: set[str]) -> None:
        """Withdraw what objects declared that are no more."""


Across = Callable[[Awaitable[Any]], Awaitable[Any]]
"""Awaits something in the service's loop."""


def build_registry(service: Reconciler, across: Across, interval_s: float) -> kopf.OperatorRegistry:
    """Every handler.

    Args:
        service: what answers.
        across: from kopf's loop to the service's.
        interval_s: between two reconciles of an object that has not changed.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> Any:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    _handle_applications(registry, service, across, interval_s)
    _handle_namespaces(registry, service, across)
    return registry


def _handle_applications(
    registry: kopf.OperatorRegistry, service: Reconciler, across: Across, interval_s: float
) -> None:
    posted: dict[str, tuple[str, str]] = {}
    """Reason and message of the last event by uid: two handlers may see the same status, before a patch."""

    async def reconcile(body: kopf.Body, patch: kopf.Patch, **_: Any) -> None:
        try:
            status = await across(service.reconcile_application(body))
        except BusError as error:
            raise kopf.TemporaryError(str(error), delay=_RETRY_S) from error
        before = dict(body.status)
        old, new = _accepted(before), _accepted(status)
        if posted.get(body.metadata["uid"], (old.get("reason"), old.get("message"))) != (new["reason"], new["message"]):
            _post_event(body, status)
        posted[body.metadata["uid"]] = (new["reason"], new["message"])
        if changed := {key: value for key, value in status.items() if before.get(key) != value}:
            patch.status.update(changed)

    async def delete(namespace: str | None, name: str | None, uid: str | None, **_: Any) -> None:
        posted.pop(uid or "", None)
        try:
            await across(service.withdraw_application(namespace or "", name or ""))
        except BusError as error:
            raise kopf.TemporaryError(str(error), delay=_RETRY_S) from error

    where: dict[str, Any] = {"group": GROUP, "version": VERSION, "plural": PLURAL, "registry": registry}
    kopf.on.create(**where, id="declare")(reconcile)
    kopf.on.update(**where, id="declare", field="spec")(reconcile)
    kopf.on.delete(**where, id="withdraw")(delete)
    # Also after a start of the operator: what the bus holds is made as declared, by whatever client it was changed.
    kopf.timer(**where, id="refresh", interval=interval_s)(reconcile)

    @kopf.index(**where, id="known_applications")
    def index_application(namespace: str | None, name: str | None, **_: Any) -> Any:
        return {(namespace, name): None}


def _handle_namespaces(registry: kopf.OperatorRegistry, service: Reconciler, across: Across) -> None:
    @kopf.index("", "v1", "namespaces", registry=registry, id="known_namespaces")
    def index_namespace(name: str | None, **_: Any) -> Any:
        return {name: None}

    @kopf.on.event("", "v1", "namespaces", registry=registry)
    async def observe(*, name: str, annotations: Mapping[str, str], body: kopf.Body, **kwargs: Any) -> None:
        gone = kwargs["event"]["type"] == "DELETED" or "deletionTimestamp" in body.metadata
        there = set(kwargs["known_applications"]), set(kwargs["known_namespaces"])
        try:
            await across(service.sweep(*there))
            refusal = await across(service.reconcile_namespace(name, None if gone else dict(annotations)))
        except BusError as error:
            kwargs["logger"].warning("namespace %s: %s; tried again later", name, error)
            return
        if refusal is not None:
            kopf.warn(body, reason=refusal.reason, message=refusal.message)


def _post_event(body: kopf.Body, status: Mapping[str, Any]) -> None:
    """That an Application was accepted or refused."""
    new = _accepted(status)
    if new["status"] == "True":
        limits = status["limits"]
        text = f"application {status['application']}: {limits['cpu']} cores, {limits['memory']}"
        kopf.info(body, reason=new["reason"], message=text)
    else:
        kopf.warn(body, reason=new["reason"], message=new["message"])


def _accepted(status: Mapping[str, Any]) -> dict[str, Any]:
    return next((each for each in status.get("conditions") or () if each["type"] == "Accepted"), {})
