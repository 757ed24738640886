"""Nothing may be emitted under a name that schemas/telemetry.py and schemas/services do not declare."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import pytest

from schemas.telemetry import ATTRIBUTES, EVERY_SPAN, METRICS, SPANS
from services._runtime.telemetry.telemetry import Telemetry, UndeclaredTelemetryError, observe_bus
from services._runtime.telemetry.tracing import span

ROOT = Path(__file__).resolve().parents[3]
EMITTERS: dict[str, Mapping[str, object]] = {
    "span": SPANS,
    "message_span": SPANS,
    "counter": METRICS,
    "observe": METRICS,
    "observe_by_label": METRICS,
    "by_app": METRICS,
    "histogram": METRICS,
}


def test_names_follow_the_conventions() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"turnbuckle(_[a-z]+)+", name)
        assert name.endswith("_total") == (metric.kind == "counter")
        assert metric.description
    declared = {label for metric in METRICS.values() for label in metric.labels}
    declared |= {attribute for each in SPANS.values() for attribute in (*each.attributes, *EVERY_SPAN)}

    assert declared == set(ATTRIBUTES), "no attribute is declared that no span and no metric has"
    for each in SPANS.values():
        assert bool(each.operation) == (each.kind != "internal")
        assert each.description


def test_every_emitted_name_is_declared() -> None:
    """Reads the source of all services: a misspelt name must not wait for its line to run."""
    seen = 0
    for path, node in _calls():
        if not node.args or not isinstance(node.args[0], ast.Constant):
            continue
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        name = node.args[0].value
        if called in EMITTERS and isinstance(name, str):
            seen += 1
            assert name in EMITTERS[called], f"{path}:{node.lineno} emits {name!r}"

    assert seen >= 10


def test_a_histogram_counts_durations_up_to_each_bound() -> None:
    telemetry = Telemetry()
    histogram = telemetry.histogram("turnbuckle_allocator_step_seconds")
    for duration_s in (0.0005, 0.0006, 0.09, 100.0):  # a bound belongs to its own bucket
        histogram.observe(duration_s)

    [sample] = telemetry.collect()

    assert list(sample.buckets) == [1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4]
    assert sample.value == pytest.approx(100.0911)
    with pytest.raises(UndeclaredTelemetryError, match="is a gauge, not a histogram"):
        telemetry.histogram("turnbuckle_app_containers")


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


def test_every_attribute_that_is_set_is_declared() -> None:
    """Also of spans that begin only where something goes wrong."""
    seen = 0
    for path, call in _calls():
        called = getattr(call.func, "attr", getattr(call.func, "id", ""))
        given = {keyword.arg.replace("__", ".") for keyword in call.keywords if keyword.arg and "__" in keyword.arg}
        if called not in {"span", "message_span", "set"} or not given:
            continue
        seen += 1
        first = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
        allowed = {*SPANS[first].attributes, *EVERY_SPAN} if isinstance(first, str) else set(ATTRIBUTES)
        assert given <= allowed, f"{path}:{call.lineno} sets {sorted(given - allowed)}"

    assert seen >= 5


def test_nothing_is_declared_that_nobody_emits() -> None:
    """A name counts as emitted where a file of the services holds it, or two pieces that it is put together of."""
    files = [_strings(nodes) for nodes in _files().values()]
    texts = set().union(*files)

    def is_put_together(name: str) -> bool:
        cuts = [(name[:cut], name[cut:]) for cut in range(1, len(name))]
        return name in texts or any(head in held and tail in held for held in files for head, tail in cuts)

    assert {name for name in METRICS if not is_put_together(name)} == set()
    assert set(SPANS) - texts == set()
    assert {name for name in ATTRIBUTES if not {name, name.replace(".", "__")} & texts} == set()


@lru_cache
def _files() -> dict[Path, list[ast.AST]]:
    """The syntax of all services, read once."""
    paths = (ROOT / "services").rglob("*.py")
    return {path: list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in paths}


def _calls() -> Iterator[tuple[Path, ast.Call]]:
    return ((path, node) for path, nodes in _files().items() for node in nodes if isinstance(node, ast.Call))


def _strings(nodes: list[ast.AST]) -> set[str]:
    """String constants (also in f-strings) and names of keyword arguments."""
    constants = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return constants | {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}


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


def test_every_span_stands_in_the_documentation() -> None:
    text = (ROOT / "docs" / "tracing.md").read_text(encoding="utf-8")

    assert [name for name in SPANS if f"`{name}`" not in text] == []
