"""Grafana dashboards from the declared metrics (`schemas/services`): `python -m scripts.generate_dashboards`.

One dashboard per part of the system, a panel for each of its metrics, and an overview that is chosen by hand. With
``--check`` nothing is written; the exit code tells whether the files are fresh.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from schemas.services import SERVICES
from schemas.telemetry import METRICS
from schemas.telemetry_specs import MetricSpec

DIRECTORY: Final = Path(__file__).parents[1] / "compose" / "observability" / "grafana" / "dashboards"
SOURCE: Final = {"type": "prometheus", "uid": "prometheus"}
COLUMNS: Final = 24
HEIGHT: Final = 7


@dataclass(frozen=True, slots=True)
class Part:
    """A dashboard: its file, and the beginnings of its metrics' names."""

    file: str
    title: str
    prefixes: tuple[str, ...]


PARTS: Final = (
    *(
        Part(service.name, service.dashboard, (f"turnbuckle_{service.name}_",))
        for service in SERVICES
        if service.dashboard
    ),
    Part("applications", "Applications: usage, limits, slack, throttling, memory", ("turnbuckle_app_",)),
    Part("network", "Network: rules, paths, fast path", ("turnbuckle_reconciler_", "turnbuckle_fast_path_")),
    Part("learning", "Collector and advisor", ("turnbuckle_collector_", "turnbuckle_advisor_")),
    Part("runner", "Runner: slots, workers of training jobs", ("turnbuckle_runner_", "turnbuckle_slurm_")),
    Part(
        "bus",
        "Bus, processes and telemetry",
        ("turnbuckle_bus_", "turnbuckle_telemetry_", "turnbuckle_build_", "turnbuckle_event_"),
    ),
)
OVERVIEW: Final = (
    "turnbuckle_allocator_applications",
    "turnbuckle_agent_containers",
    "turnbuckle_bus_connected_info",
    "turnbuckle_allocator_changes_total",
    "turnbuckle_app_cpu_allocated_cores",
    "turnbuckle_app_cpu_throttled_periods_total",
    "turnbuckle_allocator_step_seconds",
    "turnbuckle_agent_quota_writes_total",
    "turnbuckle_agent_memory_grants_total",
    "turnbuckle_agent_oom_kills_total",
    "turnbuckle_allocator_refused_containers",
    "turnbuckle_agent_skipped_samples_total",
    "turnbuckle_reconciler_problems",
    "turnbuckle_reconciler_path_disagreements",
    "turnbuckle_fast_path_active_overrides",
)
"""What to look at first: is it all there, does it act, does anything hurt."""


def expression(metric: MetricSpec) -> str:
    """PromQL: counters as rates, histograms as their 99th percentile; each process a line of its own."""
    selected = f'{metric.name}{{instance=~"$instance"}}'
    if metric.kind == "histogram":
        rate = f'rate({metric.name}_bucket{{instance=~"$instance"}}[$__rate_interval])'
        return f"histogram_quantile(0.99, sum by (service, instance, le) ({rate}))"
    return f"rate({selected}[$__rate_interval])" if metric.kind == "counter" else selected


def unit(metric: MetricSpec) -> str:
    """Grafana's name of the unit."""
    rated = metric.kind == "counter"
    if metric.otel_unit == "By":
        return "Bps" if rated else "bytes"
    if metric.otel_unit == "s":
        return "s"
    if metric.otel_unit == "{byte_second}":
        return "bytes"
    return "ops" if rated else "short"


def empty(metric: MetricSpec) -> str:
    """What a chart without series says; one with a series for each kind of trouble has none before the first."""
    return "none so far" if metric.labels else "no process tells this"


def panel(metric: MetricSpec, number: int, position: dict[str, int]) -> dict[str, Any]:
    """A chart of one metric over time."""
    labels = dict.fromkeys(("service", "instance", *metric.labels))
    lines = " ".join(f"{{{{{label}}}}}" for label in labels)
    title = metric.description[0].upper() + metric.description[1:]
    defaults: dict[str, Any] = {
        "unit": unit(metric),
        "min": 0,
        "noValue": empty(metric),
        "custom": {"fillOpacity": 10, "showPoints": "never"},
    }
    if metric.name.endswith("_info"):
        defaults |= {"max": 1, "decimals": 0}
    return {
        "id": number,
        "type": "timeseries",
        "title": title + {"counter": " (per second)", "histogram": " (p99)", "gauge": ""}[metric.kind],
        "description": metric.name,
        "datasource": SOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [{"refId": "A", "datasource": SOURCE, "expr": expression(metric), "legendFormat": lines}],
    }


def dashboard(file: str, title: str, metrics: list[MetricSpec], across: int) -> dict[str, Any]:
    """A dashboard with so many panels in a row."""
    width = COLUMNS // across
    panels = [
        panel(metric, at + 1, {"x": at % across * width, "y": at // across * HEIGHT, "w": width, "h": HEIGHT})
        for at, metric in enumerate(metrics)
    ]
    instance = {
        "name": "instance",
        "label": "process",
        "type": "query",
        "datasource": SOURCE,
        "refresh": 2,
        "sort": 1,
        "query": {"query": "label_values(turnbuckle_build_info, instance)", "refId": "instance"},
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
    return {
        "uid": f"turnbuckle-{file}",
        "title": f"Turnbuckle: {title}" if file == "overview" else title,
        "tags": ["turnbuckle"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": [instance]},
        "links": [
            {
                "type": "dashboards",
                "tags": ["turnbuckle"],
                "title": "Turnbuckle",
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "panels": panels,
    }


def texts() -> dict[str, str]:
    """File names and what they should hold."""
    made = {"overview": dashboard("overview", "overview", [METRICS[name] for name in OVERVIEW], 3)}
    for part in PARTS:
        metrics = [metric for name, metric in METRICS.items() if name.startswith(part.prefixes)]
        made[part.file] = dashboard(part.file, part.title, metrics, 3)
    return {f"{file}.json": json.dumps(content, indent=1) + "\n" for file, content in made.items()}


def stale() -> list[str]:
    """Files that differ from what should be there, or should not be there."""
    wanted = texts()
    found = {path.name: path.read_text(encoding="utf-8") for path in DIRECTORY.glob("*.json")}
    return sorted(name for name in wanted | found if wanted.get(name) != found.get(name))


def main() -> int:
    """Write the files, or compare."""
    if "--check" in sys.argv[1:]:
        sys.stdout.write("".join(f"{name} is not fresh: python -m scripts.generate_dashboards\n" for name in stale()))
        return int(bool(stale()))
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name in stale():
        (DIRECTORY / name).unlink(missing_ok=True)
    for name, text in texts().items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
