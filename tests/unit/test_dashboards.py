"""Grafana's dashboards and Prometheus' alerts against the declared metrics."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.telemetry import METRICS
from scripts.generate_dashboards import DIRECTORY, OVERVIEW, stale, texts

NAME = re.compile(r"turnbuckle_[a-z_]+?(?=_bucket\b|\b)")
ALERTS = DIRECTORY.parents[1] / "alerts.yaml"
FILES = sorted(texts())


def read(file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DIRECTORY / file).read_text(encoding="utf-8"))
    return content


def test_are_fresh() -> None:
    """If this fails: python -m scripts.generate_dashboards."""
    assert stale() == []


def test_every_metric_is_drawn_and_none_that_is_not_declared() -> None:
    drawn = {
        name
        for file in FILES
        if file != "overview.json"
        for panel in read(file)["panels"]
        for target in panel["targets"]
        for name in NAME.findall(target["expr"])
    }
    assert drawn == set(METRICS)
    assert set(OVERVIEW) <= set(METRICS)


def test_alerts_name_declared_metrics() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    named = {name for rule in rules for name in NAME.findall(rule["expr"])}
    assert named
    assert named <= set(METRICS)


def test_services_that_are_gone_are_missed() -> None:
    """A container that was stopped leaves DNS, and all its metrics end, `up` among them: only absent() tells."""
    missed = re.findall(
        r'absent\(up\{job="turnbuckle", service="([a-z]+)"\} == 1\)', ALERTS.read_text(encoding="utf-8")
    )
    assert sorted(missed) == ["agent", "allocator"]


@pytest.mark.parametrize("file", FILES)
def test_panels_do_not_overlap_and_counters_are_rates(file: str) -> None:
    panels = read(file)["panels"]
    places = [panel["gridPos"] for panel in panels]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in itertools.combinations(places, 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y
    for panel in panels:
        expression = panel["targets"][0]["expr"]
        beginning = {"counter": "rate(", "histogram": "histogram_quantile(0.99, ", "gauge": panel["description"]}
        assert expression.startswith(beginning[METRICS[panel["description"]].kind])


def test_the_data_source_is_the_provisioned_one() -> None:
    provisioned = Path(DIRECTORY.parent, "provisioning", "datasources", "turnbuckle.yaml").read_text(encoding="utf-8")
    names = {source["uid"] for source in yaml.safe_load(provisioned)["datasources"]}
    used = {panel["datasource"]["uid"] for file in FILES for panel in read(file)["panels"]}
    assert used <= names
