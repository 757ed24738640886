"""Metrics: plain numbers that `/metrics` and OpenTelemetry read on demand. Spans are in `tracing`.

Counting is free on the hot path: a counter is an attribute that its owner increments.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from schemas.telemetry import METRICS
from schemas.telemetry_specs import DURATION_BUCKETS_S, MetricSpec
from services._runtime.telemetry.tracing import UndeclaredTelemetryError, undeclared

__all__ = ["Counter", "Histogram", "Sample", "Telemetry", "UndeclaredTelemetryError", "observe_bus"]


@dataclass(slots=True, eq=False)
class Counter:
    """A count. Hot paths increment `value` directly, without a call."""

    value: int = 0

    def add(self, amount: int = 1) -> None:
        """Increment."""
        self.value += amount


class Histogram:
    """Durations in seconds, counted by bucket. An observation costs a bisection and an addition."""

    __slots__ = ("_counts", "_forward", "sum_s")

    def __init__(self, forward: Callable[[float], None] | None = None) -> None:
        """``forward`` gets each observation besides: OpenTelemetry's API has no histogram that is read on demand."""
        self._counts = [0] * (len(DURATION_BUCKETS_S) + 1)
        self._forward = forward
        self.sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(DURATION_BUCKETS_S, duration_s)] += 1
        self.sum_s += duration_s
        if self._forward is not None:
            self._forward(duration_s)

    def cumulative(self) -> list[int]:
        """Observations up to each bound of `DURATION_BUCKETS_S`, and all of them."""
        return list(accumulate(self._counts))


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric."""

    spec: MetricSpec
    labels: Mapping[str, str]
    value: float
    """Of a histogram the sum, in seconds."""
    buckets: Sequence[int] = ()
    """`Histogram.cumulative`; empty: a counter or a gauge."""


Labelled = Callable[[], Mapping[str, float]]
LabelledRows = Callable[[], Mapping[str, Sequence[float]]]


@dataclass(slots=True)
class _Observer:
    spec: MetricSpec
    labels: dict[str, str]
    read: Callable[[], float]


@dataclass(slots=True)
class Telemetry:
    """The metrics of one process."""

    _observers: list[_Observer] = field(default_factory=list)
    _families: list[tuple[MetricSpec, str, Labelled]] = field(default_factory=list)
    _tables: list[tuple[list[MetricSpec], str, LabelledRows]] = field(default_factory=list)
    _histograms: dict[str, Histogram] = field(default_factory=dict)
    _recorder: Callable[[MetricSpec], Callable[[float], None]] | None = None

    def histogram(self, name: str) -> Histogram:
        """A new histogram of durations under a declared name.

        Raises:
            UndeclaredTelemetryError: see `schemas.telemetry`.
        """
        spec = _declared(name)
        if spec.kind != "histogram":
            raise UndeclaredTelemetryError(f"metric {name} is a {spec.kind}, not a histogram")
        histogram = self._histograms[name] = Histogram(None if self._recorder is None else self._recorder(spec))
        return histogram

    def forward_histograms(self, recorder: Callable[[MetricSpec], Callable[[float], None]]) -> None:
        """Give each observation of the histograms made from now on to ``recorder(spec)``, too."""
        self._recorder = recorder

    def counter(self, name: str, **labels: str) -> Counter:
        """A new counter under a declared name.

        Raises:
            UndeclaredTelemetryError: see `schemas.telemetry`.
        """
        counter = Counter()
        self.observe(name, lambda: counter.value, **labels)
        return counter

    def observe(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Register a counter or gauge: `read` returns its value, called on the event loop."""
        spec = _declared(name)
        if set(labels) != set(spec.labels):
            raise UndeclaredTelemetryError(f"metric {name} has the labels {spec.labels}, not {tuple(labels)}")
        self._observers.append(_Observer(spec, labels, read))

    def observe_by_label(self, name: str, label: str, read: Labelled) -> None:
        """As `observe`, for label values that are not known in advance."""
        spec = _declared(name)
        if spec.labels != (label,):
            raise UndeclaredTelemetryError(f"metric {name} has the labels {spec.labels}, not {(label,)}")
        self._families.append((spec, label, read))

    def observe_rows(self, names: Sequence[str], label: str, read: LabelledRows) -> None:
        """As `observe_by_label`, for several metrics with the same label values; `read` returns a value for each."""
        specs = [_declared(name) for name in names]
        for spec in specs:
            if spec.labels != (label,):
                raise UndeclaredTelemetryError(f"metric {spec.name} has the labels {spec.labels}, not {(label,)}")
        self._tables.append((specs, label, read))

    def collect(self) -> Iterator[Sample]:
        """Read all metrics."""
        for name, histogram in self._histograms.items():
            yield Sample(METRICS[name], {}, histogram.sum_s, histogram.cumulative())
        for observer in self._observers:
            yield Sample(observer.spec, observer.labels, observer.read())
        for spec, label, read in self._families:
            for value, number in read().items():
                yield Sample(spec, {label: value}, number)
        for specs, label, read_rows in self._tables:
            for value, numbers in read_rows().items():
                for spec, number in zip(specs, numbers, strict=True):
                    yield Sample(spec, {label: value}, number)


def observe_bus(telemetry: Telemetry, connected: Callable[[], bool], counters: Callable[[], dict[str, int]]) -> None:
    """Register a bus's counters as metrics."""

    def read(name: str) -> Callable[[], float]:
        return lambda: counters().get(name, 0)

    telemetry.observe("turnbuckle_bus_connected_info", lambda: float(connected()))
    telemetry.observe("turnbuckle_bus_published_messages_total", read("published"))
    telemetry.observe("turnbuckle_bus_received_messages_total", read("received"))
    telemetry.observe("turnbuckle_bus_dropped_messages_total", read("dropped_disconnected"), reason="disconnected")
    telemetry.observe("turnbuckle_bus_dropped_messages_total", read("dropped_slow"), reason="slow")
    telemetry.observe("turnbuckle_bus_handler_errors_total", read("handler_errors"))
    telemetry.observe("turnbuckle_bus_reconnects_total", read("reconnects"))
    telemetry.observe("turnbuckle_bus_published_events_total", read("events_published"))
    telemetry.observe("turnbuckle_bus_dropped_events_total", read("events_dropped"))
    telemetry.observe("turnbuckle_bus_pending_events", read("events_pending"))
    prefix = "undecodable_"
    telemetry.observe_by_label(
        "turnbuckle_bus_undecodable_messages_total",
        "kind",
        lambda: {name.removeprefix(prefix): n for name, n in counters().items() if name.startswith(prefix)},
    )


def _declared(name: str) -> MetricSpec:
    spec = METRICS.get(name)
    if spec is None:
        raise UndeclaredTelemetryError(undeclared("metric", name, METRICS))
    return spec
