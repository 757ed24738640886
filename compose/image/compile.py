#!/usr/bin/env python3
"""Import what a service imports, now or later: ``compile.py SERVICE``. Leaves compiled files for a read-only root.

Whatever cannot be imported fails the image's build, so this is its first test, too.
"""

import importlib
import sys
from importlib.util import find_spec

OURS = ("services._runtime.service.probe", "services._runtime.service.entry", "services._runtime.telemetry.otel_export")
COMMON = (*OURS, "nkeys", "http.server", "runpy")
OWN = {
    "agent": ("services.agent.service", "services.agent.discovery.docker", "services.agent.watchdog.supervision"),
    "reconciler": ("services.reconciler.service", "services.fastpath.service"),
    "collector": ("services.collector.service", "services.collector.cloud.billing"),
    "advisor": ("services.advisor.service", "services.advisor.training"),
    "aggregator": ("services.aggregator.service", "services.aggregator.process"),
    "planner": ("services.planner.service", "services.planner.process"),
    "runner": ("services.runner.service", "services.runner.shim"),
    "cli": ("services.cli.main",),
}
WITH_GRPC = {"agent": ("services._host.cri",)}
"""Where the image's EXTRAS include kubernetes, as they do by default."""


def main() -> None:
    """Needs PYTHONDONTWRITEBYTECODE to be unset."""
    service = sys.argv[1]
    optional = WITH_GRPC.get(service, ()) if find_spec("grpc") else ()
    for name in (*COMMON, *OWN.get(service, (f"services.{service}.service",)), *optional):
        importlib.import_module(name)


if __name__ == "__main__":
    main()
