"""The metrics of `telemetry` as OpenTelemetry's observable instruments. Imported only where something is exported."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from schemas.telemetry import DURATION_BUCKETS_S, METRICS, MetricSpec
from services._runtime.telemetry.telemetry import Sample

_FRESH_S: Final = 0.5
"""The callbacks of one export run one after another and share one reading."""


def observe_all(meter: Meter, collect: Callable[[], list[Sample]]) -> None:
    """Create an observable instrument for each declared counter and gauge; unregistered ones have no observations.

    Args:
        meter: creates them.
        collect: reads all metrics; called from the exporting thread. `TimeoutError`: no observations.
    """
    readings = _Readings(collect)
    for spec in METRICS.values():
        if spec.kind == "histogram":
            continue
        make = meter.create_observable_counter if spec.kind == "counter" else meter.create_observable_gauge
        make(spec.otel_name, callbacks=[readings.of(spec.name)], unit=spec.otel_unit, description=spec.description)


def histogram_recorder(meter: Meter) -> Callable[[MetricSpec], Callable[[float], None]]:
    """What `Telemetry.forward_histograms` takes: an instrument for each histogram."""

    def recorder(spec: MetricSpec) -> Callable[[float], None]:
        return meter.create_histogram(
            spec.otel_name,
            spec.otel_unit,
            spec.description,
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S,
        ).record

    return recorder


class _Readings:
    """The latest reading of all metrics, by name."""

    def __init__(self, collect: Callable[[], list[Sample]]) -> None:
        self._collect = collect
        self._read_s = float("-inf")
        self._by_name: defaultdict[str, list[Sample]] = defaultdict(list)

    def of(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """The callback of one instrument."""

        def read(_options: CallbackOptions) -> Iterable[Observation]:
            self._refresh()
            return [Observation(sample.value, dict(sample.labels)) for sample in self._by_name[name]]

        return read

    def _refresh(self) -> None:
        if time.monotonic() - self._read_s < _FRESH_S:
            return
        found: defaultdict[str, list[Sample]] = defaultdict(list)
        try:
            for sample in self._collect():
                found[sample.spec.name].append(sample)
        except TimeoutError:
            pass  # the event loop is busy or has ended
        self._by_name, self._read_s = found, time.monotonic()
