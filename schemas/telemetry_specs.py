"""Forms of metrics, spans, attributes and alerts. `schemas.telemetry` has all that a service may emit.

Metrics follow Prometheus: ``turnbuckle_<noun>_<unit>``, base units, ``_total`` for counters, few label values (never a
job, container or concrete subject); `MetricSpec.otel_name` is the same metric under OpenTelemetry's naming.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

_UNITS: Final = (("_bytes", "By"), ("_seconds", "s"))
"""Endings of metric names, and their units in OpenTelemetry (UCUM)."""
_PRODUCT: Final = "_byte_seconds"
"""An annotation in OpenTelemetry: its exporters for Prometheus put no name to products of units (By.s)."""
DURATION_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of a histogram's buckets: half a millisecond is a step of few containers, a period has 100 ms."""


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """An attribute of a span or a label of a metric."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A counter or gauge, which is read on demand, or a histogram of durations (`DURATION_BUCKETS_S`)."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    description: str
    labels: tuple[str, ...] = ()

    @property
    def otel_unit(self) -> str:
        """UCUM unit: ``By``, ``s``; else what is counted, in the singular: ``{write}``, ``{core}``; of flags none."""
        if self._stem.endswith(_PRODUCT):
            return "{byte_second}"
        counted = self._stem.rpartition("_")[2]
        if counted == "info":
            return ""  # "1" would be a ratio to exporters for Prometheus
        return next((unit for ending, unit in _UNITS if self._stem.endswith(ending)), f"{{{_singular(counted)}}}")

    @property
    def otel_name(self) -> str:
        """``turnbuckle.agent.samples``: what OpenTelemetry's exporters for Prometheus turn into `name` again."""
        stem = self._stem
        endings = () if stem.endswith(_PRODUCT) else _UNITS
        ending = next((ending for ending, _ in endings if stem.endswith(ending)), "")
        return ".".join(stem.removesuffix(ending).split("_", 2))

    @property
    def _stem(self) -> str:
        return self.name.removesuffix("_total")


def _singular(noun: str) -> str:
    return re.sub(r"(?<=ch|ss)es$|s$", "", re.sub(r"ies$", "y", noun))


SpanKind = Literal["internal", "client", "server", "producer", "consumer"]


@dataclass(frozen=True, slots=True)
class SpanSpec:
    """An operation that took time."""

    name: str
    description: str
    attributes: tuple[str, ...] = ()
    kind: SpanKind = "internal"
    operation: str = ""
    """Of a messaging span: ``messaging.operation.name``, which its exported name begins with."""

    def title(self, destination: str) -> str:
        """The exported name: of messaging spans operation and destination template, by the semantic conventions."""
        return f"{self.operation} {destination}".rstrip() if self.operation else self.name


@dataclass(frozen=True, slots=True)
class AlertSpec:
    """An alert of Prometheus; its runbook is ``docs/runbooks/<name>.md``."""

    name: str
    severity: Literal["critical", "warning"]
    expression: str
    """PromQL."""
    summary: str
    holds_for: str = ""
    """How long the expression has held before it fires, as Prometheus writes durations; empty: at once."""
