"""Environment variables of this host's reconciler and fast path, from its host.yaml."""

from __future__ import annotations

from services._runtime.service.settings import CommonSettings
from services.fabric.model import HostFile
from services.fastpath.settings import FastPathSettings
from services.reconciler.settings import ReconcilerSettings


def reconciler_environment(host: HostFile) -> dict[str, str]:
    """Variables of the reconciler; empty where the file asks for no rules (`encapsulation: null`)."""
    if host.encapsulation is None:
        return {}
    ports = ",".join(f"{port.name}={port.mac}" for port in host.ports)
    values = {
        "node": host.name,
        "netns": host.netns,
        "ports": ports or None,
        "encapsulation_device": host.encapsulation.name,
        "frr_pathspace": host.pathspace,
    }
    return _variables(ReconcilerSettings, values)


def fast_path_environment(host: HostFile) -> dict[str, str]:
    """Variables of the fast path; empty where there is no second uplink to fail over to.

    ``FABRIC_KEY`` is no part of it: it is a secret that all hosts share (`FABRIC_KEY_FILE`).
    """
    if len(host.uplinks) == 1:
        return {}
    values = {
        "node": host.name,
        "netns": host.netns,
        "uplinks": ",".join(uplink.name for uplink in host.uplinks),
        "vtep": str(host.vtep),
        "frr_pathspace": host.pathspace,
    }
    return _variables(FastPathSettings, values)


def _variables(settings: type[CommonSettings], values: dict[str, str | None]) -> dict[str, str]:
    return {settings.variable(field): value for field, value in values.items() if value is not None}
