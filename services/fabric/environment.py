"""Environment variables of this host's reconciler and fast path, from its host.yaml."""

from __future__ import annotations

from services.fabric.model import HostFile


def reconciler_environment(host: HostFile) -> dict[str, str]:
    """Variables of the reconciler; empty where the file asks for no rules (`encapsulation: null`)."""
    if host.encapsulation is None:
        return {}
    ports = ",".join(f"{port.name}={port.mac}" for port in host.ports)
    wanted = {
        "NODE": host.name,
        "NETNS": host.netns,
        "PORTS": ports or None,
        "ENCAPSULATION_DEVICE": host.encapsulation.name,
        "FRR_PATHSPACE": host.pathspace,
    }
    return _lines("RECONCILER", wanted)


def fast_path_environment(host: HostFile) -> dict[str, str]:
    """Variables of the fast path; empty where there is no second uplink to fail over to.

    ``FABRIC_KEY`` is no part of it: it is a secret that all hosts share (`FABRIC_KEY_FILE`).
    """
    if len(host.uplinks) == 1:
        return {}
    wanted = {
        "NODE": host.name,
        "NETNS": host.netns,
        "UPLINKS": ",".join(uplink.name for uplink in host.uplinks),
        "VTEP": str(host.vtep),
        "FRR_PATHSPACE": host.pathspace,
    }
    return _lines("FAST_PATH", wanted)


def _lines(service: str, wanted: dict[str, str | None]) -> dict[str, str]:
    return {f"TURNBUCKLE_{service}__{field}": value for field, value in wanted.items() if value is not None}
