"""What an object of Kubernetes declares: an AppSpec and a pod selector, or why not. Pure.

An Application declares for its own namespace; a Namespace's annotations, for all its pods. The application is named
``<namespace>.<name>``, or ``<name>`` where the Application lives in the operator's namespace, or as the Namespace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from schemas.apps import AppSpec
from schemas.kubeoperator import PodSelector
from services.kubeoperator.core.quantity import QuantityError, parse_quantity

CPU_ANNOTATION: Final = "turnbuckle.cpu-limit"
MEMORY_ANNOTATION: Final = "turnbuckle.memory-limit"
POLICY_ANNOTATION: Final = "turnbuckle.policy"
MODE_ANNOTATION: Final = "turnbuckle.mode"
_FIELDS: Final = {"cpu_limit": "cpu", "memory_limit": "memory"}
"""Fields of an AppSpec that are named otherwise in Kubernetes."""


Selected = Sequence[tuple[str, dict[str, str]]]
"""Namespaces, each with the labels that its pods must have."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """One application, as an object of Kubernetes wants it."""

    declared_by: str
    spec: AppSpec
    selectors: tuple[PodSelector, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an object declares nothing that could be announced."""

    declared_by: str
    app: str
    reason: str
    """One word in CamelCase, for a condition."""
    message: str


def application_source(namespace: str, name: str) -> str:
    """The `declared_by` of an Application."""
    return f"Application {namespace}/{name}"


def namespace_source(name: str) -> str:
    """The `declared_by` of a Namespace."""
    return f"Namespace {name}"


def read_application(namespace: str, name: str, spec: Mapping[str, Any], home: str) -> Declaration | Refusal:
    """What an Application declares.

    Args:
        namespace: its own.
        name: its own.
        spec: as the API server gives it.
        home: the operator's namespace; Applications there may select pods of other namespaces.
    """
    source = application_source(namespace, name)
    app = name if namespace == home else f"{namespace}.{name}"
    selector = spec.get("selector") or {}
    namespaces = list(selector.get("namespaces") or [namespace])
    if namespaces != [namespace] and namespace != home:
        message = f"selector.namespaces: only Applications in {home} may select pods of other namespaces"
        return Refusal(source, app, "ForeignNamespace", message)
    labels = dict(selector.get("matchLabels") or {})
    fields = {key: spec[key] for key in ("policy", "mode") if key in spec}
    return _declare(source, app, (spec.get("cpu"), spec.get("memory")), fields, [(each, labels) for each in namespaces])


def read_namespace(name: str, annotations: Mapping[str, str]) -> Declaration | Refusal | None:
    """What a Namespace's annotations declare; None: nothing, it has neither limit."""
    cpu, memory = annotations.get(CPU_ANNOTATION), annotations.get(MEMORY_ANNOTATION)
    if cpu is None and memory is None:
        return None
    chosen = {"policy": annotations.get(POLICY_ANNOTATION), "mode": annotations.get(MODE_ANNOTATION)}
    fields = {key: value for key, value in chosen.items() if value is not None}
    return _declare(namespace_source(name), name, (cpu, memory), fields, [(name, {})])


def _declare(
    source: str,
    app: str,
    limits: tuple[Any, Any],
    fields: Mapping[str, str],
    selected: Selected,
) -> Declaration | Refusal:
    cpu, memory = limits
    if cpu is None or memory is None:
        missing = "cpu" if cpu is None else "memory"
        return Refusal(source, app, "LimitMissing", f"{missing}: both limits are needed, cpu and memory")
    try:
        cores = float(_read("cpu", cpu))
        size = int(_read("memory", memory))
        spec = AppSpec.model_validate({"name": app, "cpu_limit": cores, "memory_limit": size, **fields})
        selectors = tuple(
            PodSelector(app=app, namespace=namespace, match_labels=labels, declared_by=source)
            for namespace, labels in selected
        )
    except QuantityError as error:
        return Refusal(source, app, "InvalidQuantity", str(error))
    except ValidationError as error:
        return Refusal(source, app, "InvalidSpec", _describe(error))
    return Declaration(source, spec, selectors)


def _read(field: str, value: object) -> Any:
    try:
        return parse_quantity(value)
    except QuantityError as error:
        raise QuantityError(f"{field}: {error}") from None


def _describe(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(_FIELDS.get(str(part), str(part)) for part in each['loc']) or 'spec'}: {each['msg']}"
        for each in error.errors(include_url=False, include_input=False)
    )
