"""OTEL_* variables: nothing without an endpoint, and every value that cannot be honoured is named."""

from __future__ import annotations

import pytest

from services._runtime.settings_error import SettingsError
from services._runtime.telemetry import otel_settings
from services._runtime.telemetry.otel_settings import OtelSettings, SignalSettings, read_otel_settings

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
HTTP, NONE = SignalSettings("otlp", "http/protobuf"), SignalSettings("none", "http/protobuf")


def read(**variables: str) -> OtelSettings | None:
    return read_otel_settings("agent", variables)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_SERVICE_NAME": "mine", "OTEL_TRACES_SAMPLER": "always_on"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"},
        {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_SAMPLER": "nonsense", **ENDPOINT},
    ],
)
def test_nothing_is_exported(variables: dict[str, str]) -> None:
    assert read(**variables) is None


def test_an_endpoint_asks_for_both_signals() -> None:
    assert read(**ENDPOINT) == OtelSettings(HTTP, HTTP)
    assert read(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://c:4318/v1/traces") == OtelSettings(HTTP, NONE)
    assert read(OTEL_METRICS_EXPORTER="otlp") == OtelSettings(NONE, HTTP)
    assert read(OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="none") == OtelSettings(
        SignalSettings("console", "http/protobuf"), NONE
    )


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin: there is otlp, console, none"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_PROTOCOL=http/json"),
        ({**ENDPOINT, "OTEL_TRACES_SAMPLER": "sometimes"}, "OTEL_TRACES_SAMPLER=sometimes: must be one of always_on"),
        (
            {**ENDPOINT, "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"},
            "OTEL_TRACES_SAMPLER_ARG=2: must be a number from 0 to 1",
        ),
        ({**ENDPOINT, "OTEL_BSP_SCHEDULE_DELAY": "soon"}, "OTEL_BSP_SCHEDULE_DELAY=soon: must be a number above 0"),
        ({**ENDPOINT, "OTEL_METRIC_EXPORT_INTERVAL": "0"}, "OTEL_METRIC_EXPORT_INTERVAL=0"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "must be a URL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[oops"}, "must be a URL"),
        ({**ENDPOINT, "OTEL_RESOURCE_ATTRIBUTES": "nonsense"}, "OTEL_RESOURCE_ATTRIBUTES=nonsense: must be key=value"),
        ({**ENDPOINT, "OTEL_PROPAGATORS": "tracecontext,pigeon"}, "OTEL_PROPAGATORS=tracecontext,pigeon: pigeon"),
    ],
)
def test_what_cannot_be_honoured_is_named(variables: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as error:
        read(**variables)
    assert said in str(error.value)


def test_a_token_in_headers_is_never_shown() -> None:
    with pytest.raises(SettingsError) as error:
        read(**ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS="bearer-s3cret")
    assert "OTEL_EXPORTER_OTLP_HEADERS: must be key=value pairs" in str(error.value)
    assert "s3cret" not in str(error.value)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    missing: set[str] = {"opentelemetry.exporter.otlp.proto.grpc"}
    monkeypatch.setattr(otel_settings, "_is_installed", lambda module: module not in missing)

    with pytest.raises(SettingsError, match="pip install opentelemetry-exporter-otlp-proto-grpc, or choose"):
        read(**ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    missing.add("opentelemetry.exporter.otlp.proto.http")
    with pytest.raises(SettingsError, match="part of the extra otel"):
        read(**ENDPOINT)
    missing.add("opentelemetry.sdk")
    with pytest.raises(SettingsError, match=r"OTEL_EXPORTER_OTLP_ENDPOINT asks .* pip install opentelemetry-sdk, or"):
        read(**ENDPOINT)
    assert read(**ENDPOINT, OTEL_SDK_DISABLED="true") is None


def test_grpc_takes_other_endpoints_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel_settings, "_is_installed", lambda _module: True)
    found = read(OTEL_EXPORTER_OTLP_ENDPOINT="collector:4317", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")

    assert found == OtelSettings(SignalSettings("otlp", "grpc"), SignalSettings("otlp", "grpc"))


def test_what_is_left_out_is_told() -> None:
    found = read(**ENDPOINT, OTEL_LOGS_EXPORTER="otlp", OTEL_CONFIG_FILE="/etc/otel.yaml")

    assert found is not None
    assert [sentence.partition(":")[0] for sentence in found.ignored] == ["OTEL_CONFIG_FILE", "OTEL_LOGS_EXPORTER"]
