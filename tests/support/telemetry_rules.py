"""What every exported span must keep to."""

from __future__ import annotations

from collections.abc import Iterable

from schemas.registry import CHANNELS, ENDPOINTS
from schemas.telemetry import EVERY_SPAN, SPANS
from schemas.telemetry_specs import SpanSpec
from tests.support.otlp_receiver import ReceivedSpan

_DESTINATIONS = [channel.template.text for channel in CHANNELS] + [endpoint.template.text for endpoint in ENDPOINTS]
TITLES: dict[str, SpanSpec] = {
    spec.title(destination): spec
    for spec in SPANS.values()
    for destination in (_DESTINATIONS if spec.operation else [""])
}
"""Every name that a span may be exported under."""


def assert_all_declared(spans: Iterable[ReceivedSpan]) -> None:
    """Names, kinds and attributes stand in `schemas.telemetry`."""
    seen = 0
    for span in spans:
        seen += 1
        spec = TITLES.get(span.name)
        assert spec is not None, f"{span.name} is not declared"
        assert span.kind == spec.kind, span
        assert set(span.attributes) <= {*spec.attributes, *EVERY_SPAN}, span
    assert seen, "there was no span"
