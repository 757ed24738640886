"""Reads and validates the ``OTEL_*`` variables. Imports nothing of OpenTelemetry.

The SDK reads most of them itself and ignores invalid values; here an invalid value is an error, as in every other
setting. Nothing is exported while no endpoint is set (the specification's default, localhost, would fill logs
with errors on every machine without a collector), unless an exporter is set by name.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Final, Literal
from urllib.parse import urlsplit

from services._runtime.install_hint import package_missing
from services._runtime.settings_error import SettingsError

Exporter = Literal["otlp", "console", "none"]
Protocol = Literal["http/protobuf", "grpc"]

_EXPORTERS: Final = ("otlp", "console", "none")
_PACKAGES: Final = {
    "http/protobuf": ("opentelemetry.exporter.otlp.proto.http", "opentelemetry-exporter-otlp-proto-http"),
    "grpc": ("opentelemetry.exporter.otlp.proto.grpc", "opentelemetry-exporter-otlp-proto-grpc"),
}
_SAMPLERS: Final = (
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)
_POSITIVE: Final = (
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_METRIC_EXPORT_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT",
)
_FILES: Final = ("OTEL_CONFIG_FILE", "OTEL_EXPERIMENTAL_CONFIG_FILE")


@dataclass(frozen=True, slots=True)
class SignalSettings:
    """Exporter of one signal."""

    exporter: Exporter
    protocol: Protocol


@dataclass(frozen=True, slots=True)
class OtelSettings:
    """Exporters of all signals."""

    traces: SignalSettings
    metrics: SignalSettings
    ignored: tuple[str, ...] = ()
    """A sentence for each variable that has no effect."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The exporting service."""

    service: str
    version: str


def read_otel_settings(service: str, environ: Mapping[str, str]) -> OtelSettings | None:
    """The export settings; None: nothing is exported.

    Raises:
        SettingsError: names every invalid variable and missing package.
    """
    env = {name: value.strip() for name, value in environ.items() if name.startswith("OTEL_") and value.strip()}
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    problems: list[str] = []
    traces, metrics = (_signal(env, signal, problems) for signal in ("TRACES", "METRICS"))
    if not problems and traces.exporter == metrics.exporter == "none":
        return None
    _check_values(env, problems)
    _check_packages((traces, metrics), env, problems)
    if problems:
        raise SettingsError(service, problems)
    return OtelSettings(traces, metrics, tuple(_ignored(env)))


def _signal(env: Mapping[str, str], signal: str, problems: list[str]) -> SignalSettings:
    variable = f"OTEL_{signal}_EXPORTER"
    endpoint = env.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    named = env.get(variable, "otlp" if endpoint else "none")
    exporter: Exporter = "none"
    for known in ("otlp", "console", "none"):
        exporter = known if named == known else exporter
    if named not in _EXPORTERS:
        problems.append(f"{variable}={named}: there is {', '.join(_EXPORTERS)}")
    requested = env.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or env.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol: Protocol = "grpc" if requested == "grpc" else "http/protobuf"
    if exporter == "otlp" and requested is not None and requested not in _PACKAGES:
        problems.append(f"OTEL_EXPORTER_OTLP_PROTOCOL={requested}: there is http/protobuf, and grpc if it is installed")
    return SignalSettings(exporter, protocol)


def _check_values(env: Mapping[str, str], problems: list[str]) -> None:
    checks: dict[str, tuple[Callable[[str], bool], str]] = dict.fromkeys(_POSITIVE, (_is_positive, "a number above 0"))
    checks["OTEL_TRACES_SAMPLER"] = (lambda value: value.lower() in _SAMPLERS, f"one of {', '.join(_SAMPLERS)}")
    if env.get("OTEL_TRACES_SAMPLER", "").lower().endswith("traceidratio"):
        checks["OTEL_TRACES_SAMPLER_ARG"] = (_is_share, "a number from 0 to 1")
    uses_grpc = "grpc" in {value for name, value in env.items() if name.endswith("_PROTOCOL")}
    for signal in ("", "TRACES_", "METRICS_"):
        if not uses_grpc:  # other URL schemes are valid with gRPC
            checks[f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT"] = (_is_url, "a URL, http:// or https://")
        checks[f"OTEL_EXPORTER_OTLP_{signal}HEADERS"] = (_are_pairs, "key=value pairs, separated by commas")
    checks["OTEL_RESOURCE_ATTRIBUTES"] = (_are_pairs, "key=value pairs, separated by commas")
    for variable, (is_right, must) in checks.items():
        value = env.get(variable)
        if value is not None and not is_right(value):
            shown = variable if variable.endswith("HEADERS") else f"{variable}={value}"  # headers hold tokens
            problems.append(f"{shown}: must be {must}")


def _check_packages(signals: tuple[SignalSettings, ...], env: Mapping[str, str], problems: list[str]) -> None:
    if not _is_installed("opentelemetry.sdk"):
        variable = next((name for name in sorted(env) if name.endswith(("_ENDPOINT", "_EXPORTER"))), "OTEL_*")
        problems.append(
            f"{variable} asks for telemetry, but {package_missing('opentelemetry.sdk', 'otel')}; "
            "or set OTEL_SDK_DISABLED=true"
        )
        return
    _check_propagators(env, problems)
    for protocol in sorted({signal.protocol for signal in signals if signal.exporter == "otlp"}):
        module, package = _PACKAGES[protocol]
        if not _is_installed(module):
            problems.append(
                f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}: its exporter is not installed: pip install {package}"
                + (", or choose http/protobuf" if protocol == "grpc" else " (it is part of the extra otel)")
            )


def _check_propagators(env: Mapping[str, str], problems: list[str]) -> None:
    known = {point.name for point in entry_points(group="opentelemetry_propagator")} | {"none"}
    requested = env.get("OTEL_PROPAGATORS", "none")
    there_is = ", ".join(sorted(known))
    problems.extend(
        f"OTEL_PROPAGATORS={requested}: {name} is misspelled or not installed; there is {there_is}"
        for name in (part.strip() for part in requested.split(","))
        if name not in known
    )


def _ignored(env: Mapping[str, str]) -> list[str]:
    found = [
        f"{variable}: files are not read; every other OTEL_* variable is" for variable in _FILES if variable in env
    ]
    if env.get("OTEL_LOGS_EXPORTER", "none") != "none":
        found.append("OTEL_LOGS_EXPORTER: logs go to standard error, with trace_id and span_id")
    return found


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


def _is_positive(value: str) -> bool:
    try:
        return 0 < float(value) < float("inf")
    except ValueError:
        return False


def _is_share(value: str) -> bool:
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False


def _is_url(value: str) -> bool:
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)


def _are_pairs(value: str) -> bool:
    return all("=" in pair and not pair.strip().startswith("=") for pair in value.split(",") if pair.strip())
