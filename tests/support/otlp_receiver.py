"""A collector in the test's own process: OTLP over HTTP, real protobuf; it can also refuse, or hang."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

Mood = Literal["takes", "refuses", "hangs"]
_KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
_ERROR = 2


@dataclass(frozen=True)
class ReceivedSpan:
    """One span, as it came."""

    name: str
    service: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    begun_ns: int
    ended_ns: int
    attributes: dict[str, Any] = field(hash=False, default_factory=dict)
    links: tuple[str, ...] = ()
    """Ids of the spans that it follows from beside its parent."""
    failed: str | None = None
    """What the status says, where it is an error."""
    resource: dict[str, Any] = field(hash=False, default_factory=dict)


@dataclass(frozen=True)
class ReceivedPoint:
    """One number of one metric."""

    name: str
    unit: str
    service: str
    value: float
    attributes: dict[str, Any] = field(hash=False, default_factory=dict)
    is_counter: bool = False
    buckets: tuple[int, ...] = ()
    """Of a histogram: observations in each bucket; its value is their sum."""


class OtlpReceiver:
    """Everything that was sent to it."""

    def __init__(self) -> None:
        self.mood: Mood = "takes"
        self.requests = 0
        self.headers: list[dict[str, str]] = []
        self._spans: list[ReceivedSpan] = []
        self._points: list[ReceivedPoint] = []
        self._changed = threading.Condition()
        self._released = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.receiver = self
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Listen."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Listen no longer; those who hang are let go."""
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process send here, quickly."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_METRIC_EXPORT_INTERVAL": "300",
        }

    @property
    def spans(self) -> list[ReceivedSpan]:
        """All that have come so far."""
        with self._changed:
            return list(self._spans)

    @property
    def points(self) -> list[ReceivedPoint]:
        """All numbers that have come so far."""
        with self._changed:
            return list(self._points)

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        """The spans of a trace, in the order of their beginnings."""
        return sorted((span for span in self.spans if span.trace_id == trace_id), key=lambda span: span.begun_ns)

    def lineage(self, span: ReceivedSpan) -> list[ReceivedSpan]:
        """From the root (as far as it has come) down to the span."""
        by_id = {each.span_id: each for each in self.spans if each.trace_id == span.trace_id}
        found = [span]
        while (parent := by_id.get(found[0].parent_id)) is not None:
            found.insert(0, parent)
        return found

    def take(self, path: str, body: bytes) -> bytes:
        """Read a request; returns the reply's body."""
        with self._changed:
            if path == "/v1/traces":
                self._spans += _spans_of(ExportTraceServiceRequest.FromString(body))
                reply: Any = ExportTraceServiceResponse()
            else:
                self._points += _points_of(ExportMetricsServiceRequest.FromString(body))
                reply = ExportMetricsServiceResponse()
            self._changed.notify_all()
        return bytes(reply.SerializeToString())

    def hang(self) -> None:
        """Until the end."""
        self._released.wait()


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """A collector that listens for as long as the block runs."""
    receiver = OtlpReceiver()
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    receiver: OtlpReceiver

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no event."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        receiver = self.server.receiver
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        receiver.requests += 1
        receiver.headers.append(dict(self.headers))
        if receiver.mood == "hangs":
            receiver.hang()
            return
        refused = receiver.mood == "refuses" or self.headers["Content-Type"] != "application/x-protobuf"
        reply = b"" if refused else receiver.take(self.path, body)
        self.send_response(400 if refused else 200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None


def _attributes(pairs: Any) -> dict[str, Any]:
    found: list[KeyValue] = list(pairs)
    return {pair.key: _value(pair.value) for pair in found}


def _spans_of(request: Any) -> Iterator[ReceivedSpan]:
    for resource_spans in request.resource_spans:
        resource = _attributes(resource_spans.resource.attributes)
        for scope in resource_spans.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    name=span.name,
                    service=str(resource.get("service.name", "")),
                    kind=_KINDS[span.kind],
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    begun_ns=span.start_time_unix_nano,
                    ended_ns=span.end_time_unix_nano,
                    attributes=_attributes(span.attributes),
                    links=tuple(link.span_id.hex() for link in span.links),
                    failed=span.status.message if span.status.code == _ERROR else None,
                    resource=resource,
                )


def _points_of(request: Any) -> Iterator[ReceivedPoint]:
    for resource_metrics in request.resource_metrics:
        service = str(_attributes(resource_metrics.resource.attributes).get("service.name", ""))
        for scope in resource_metrics.scope_metrics:
            for metric in scope.metrics:
                if metric.WhichOneof("data") == "histogram":
                    for point in metric.histogram.data_points:
                        attributes, counts = _attributes(point.attributes), tuple(point.bucket_counts)
                        yield ReceivedPoint(metric.name, metric.unit, service, point.sum, attributes, buckets=counts)
                    continue
                is_counter = metric.WhichOneof("data") == "sum"
                for point in (metric.sum if is_counter else metric.gauge).data_points:
                    value = point.as_double if point.WhichOneof("value") == "as_double" else point.as_int
                    yield ReceivedPoint(
                        metric.name, metric.unit, service, value, _attributes(point.attributes), is_counter
                    )


def wait_for(condition: Callable[[], Any], within_s: float = 60.0, what: str = "the condition") -> Any:
    """The first true value; blocks. For code without an event loop."""
    deadline_s = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"{what} did not hold within {within_s:g} s")
        time.sleep(0.01)
    return found
