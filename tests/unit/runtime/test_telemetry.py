"""Nothing may be emitted under a name that schemas/telemetry.py does not declare."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from schemas.telemetry import ATTRIBUTES, METRICS, SPANS
from services._runtime.telemetry import Telemetry, UndeclaredTelemetryError, extract, inject, observe_bus, span

ROOT = Path(__file__).resolve().parents[3]
EMITTERS: dict[str, Mapping[str, object]] = {
    "span": SPANS,
    "counter": METRICS,
    "observe": METRICS,
    "observe_by_label": METRICS,
}


def test_names_follow_the_conventions() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"turnbuckle(_[a-z]+)+", name)
        assert name.endswith("_total") == (metric.kind == "counter")
        assert metric.description
    declared = {label for metric in METRICS.values() for label in metric.labels}
    declared |= {attribute for each in SPANS.values() for attribute in each.attributes}

    assert declared <= set(ATTRIBUTES)


def test_every_emitted_name_is_declared() -> None:
    """Reads the source of all services: a misspelt name must not wait for its line to run."""
    seen = 0
    for path in (ROOT / "services").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            name = node.args[0].value
            if called in EMITTERS and isinstance(name, str):
                seen += 1
                assert name in EMITTERS[called], f"{path}:{node.lineno} emits {name!r}"

    assert seen >= 10


def test_undeclared_names_are_refused() -> None:
    telemetry = Telemetry()
    with pytest.raises(UndeclaredTelemetryError, match="did you mean turnbuckle_bus_reconnects_total"):
        telemetry.counter("turnbuckle_bus_reconnect_total")
    with pytest.raises(UndeclaredTelemetryError, match="labels"):
        telemetry.counter("turnbuckle_build_info", service="x")
    with pytest.raises(UndeclaredTelemetryError, match="labels"):
        telemetry.observe_by_label("turnbuckle_build_info", "service", dict)
    with pytest.raises(UndeclaredTelemetryError, match="span"):
        span("nothing")
    with pytest.raises(UndeclaredTelemetryError, match="attribute"):
        span("bus.request", colour="red")


def test_spans_and_propagation_cost_nothing_yet() -> None:
    headers: dict[str, str] = {}
    with span("bus.request", messaging__system="nats") as current:
        current.set(messaging__destination__name="x")
        inject(headers)
        extract(headers)

    assert headers == {}


def test_counters_are_plain_integers() -> None:
    telemetry = Telemetry()
    counter = telemetry.counter("turnbuckle_bus_handler_errors_total")
    counter.add()
    counter.value += 2

    assert [(sample.spec.name, sample.value) for sample in telemetry.collect()] == [
        ("turnbuckle_bus_handler_errors_total", 3)
    ]


def test_bus_counters_become_metrics() -> None:
    """Kinds that come up at run time become label values."""
    telemetry = Telemetry()
    counters = {"published": 4, "undecodable_malformed": 2}
    observe_bus(telemetry, lambda: True, lambda: counters)
    counters["undecodable_invalid"] = 1

    values = {(sample.spec.name, *sample.labels.values()): sample.value for sample in telemetry.collect()}

    assert values["turnbuckle_bus_published_messages_total",] == 4
    assert values["turnbuckle_bus_connected_info",] == 1
    assert values["turnbuckle_bus_undecodable_messages_total", "malformed"] == 2
    assert values["turnbuckle_bus_undecodable_messages_total", "invalid"] == 1
