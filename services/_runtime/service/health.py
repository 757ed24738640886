"""Health over HTTP: `/livez`, `/readyz`, `/metrics`; served by threads, so that a stuck event loop is reported."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from schemas.telemetry_specs import DURATION_BUCKETS_S
from services._runtime.clock import until_multiple_s
from services._runtime.telemetry.telemetry import Sample, Telemetry

HEARTBEAT_S: Final = 1.0
"""At whole multiples of it (`until_multiple_s`)."""
HEARTBEAT_TIMEOUT_S: Final = 5.0
"""A heartbeat older than this means that the event loop is stuck."""
_CLIENT_TIMEOUT_S: Final = 5.0
_MAX_CLIENTS: Final = 16


@dataclass(slots=True)
class Health:
    """Health of this process. Written on the event loop, read by the HTTP threads."""

    not_ready: Callable[[], list[str]]
    """Reasons why the process is not ready; called on the event loop."""
    telemetry: Telemetry
    service: str = ""
    """Of whose process: when in a second it wakes up depends on that."""
    monotonic: Callable[[], float] = time.monotonic
    loop_timeout_s: float = 2.0
    """Timeout of a call on the event loop."""
    last_beat_s: float = field(default=float("-inf"))
    loop: asyncio.AbstractEventLoop | None = None

    async def beat(self) -> None:
        """Record heartbeats of the event loop; cancel to stop."""
        self.loop = asyncio.get_running_loop()
        while True:
            self.last_beat_s = self.monotonic()
            await asyncio.sleep(until_multiple_s(HEARTBEAT_S, time.monotonic(), self.service))

    @property
    def beat_age_s(self) -> float:
        """Seconds since the last heartbeat."""
        return self.monotonic() - self.last_beat_s

    def not_live(self) -> list[str]:
        """Reasons why this process should be restarted."""
        age_s = self.beat_age_s
        return [f"no heartbeat of the event loop for {age_s:.1f} s"] if age_s > HEARTBEAT_TIMEOUT_S else []

    def on_loop(self, read: Callable[[], Any]) -> Any:
        """Call a function on the event loop, from another thread.

        Raises:
            TimeoutError: the loop is busy, has ended, or has not begun.
        """
        if self.loop is None or self.loop.is_closed():
            raise TimeoutError
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def call() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(read())
            except Exception as error:  # noqa: BLE001 - raised again in the calling thread
                answer.set_exception(error)

        try:
            self.loop.call_soon_threadsafe(call)
            return answer.result(self.loop_timeout_s)
        except (concurrent.futures.TimeoutError, RuntimeError) as error:
            answer.cancel()
            raise TimeoutError from error

    def reasons_not_ready(self) -> list[str]:
        """As `not_ready`, from any thread."""
        try:
            reasons: list[str] = self.on_loop(self.not_ready)
        except TimeoutError:
            return ["the event loop is busy"]
        except Exception as error:  # noqa: BLE001 - a service's bug must not look like health
            return [f"readiness is unknown: {type(error).__name__}: {error}"]
        return reasons

    def samples(self) -> list[Sample]:
        """All metrics, from any thread.

        Raises:
            TimeoutError: the event loop does not answer.
        """
        samples: list[Sample] = self.on_loop(lambda: list(self.telemetry.collect()))
        return samples

    def metrics(self) -> bytes:
        """Prometheus text.

        Raises:
            TimeoutError: the event loop does not answer.
        """
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_Samples(self.samples()))
        return generate_latest(registry)


class _Samples(Collector):
    """Samples as prometheus_client's metric families."""

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples

    def collect(self) -> list[Metric]:
        """One family per metric."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        histograms: list[Metric] = []
        for sample in self._samples:
            spec = sample.spec
            if spec.kind == "histogram":
                bounds = [*map(floatToGoString, DURATION_BUCKETS_S), "+Inf"]
                buckets = list(zip(bounds, sample.buckets, strict=True))
                histograms.append(HistogramMetricFamily(spec.name, spec.description, buckets, sample.value))
                continue
            if spec.name not in families:
                family = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
                families[spec.name] = family(spec.name, spec.description, labels=spec.labels)
            families[spec.name].add_metric([sample.labels[label] for label in spec.labels], sample.value)
        return [*families.values(), *histograms]


class HealthServer:
    """The HTTP server. `port` 0: any free one; `start` returns it."""

    def __init__(self, health: Health, host: str, port: int) -> None:
        self._health = health
        self._address = (host, port)
        self._server: _Server | None = None

    def start(self) -> int:
        """Listen, and return the port.

        Raises:
            OSError: the address cannot be listened on.
        """
        self._server = _Server(self._address, self._health)
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()
        return int(self._server.server_address[1])

    def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], health: Health) -> None:
        self.health = health
        self._slots = threading.BoundedSemaphore(_MAX_CLIENTS)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignored: clients disconnect or send malformed requests."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CLIENT_TIMEOUT_S
    server_version = "turnbuckle"
    sys_version = ""

    def do_GET(self) -> None:
        health = self.server.health
        path = self.path.partition("?")[0]
        if path == "/livez":
            self._send_reasons(health.not_live())
        elif path == "/readyz":
            self._send_reasons(health.reasons_not_ready())
        elif path == "/metrics":
            try:
                self._send(HTTPStatus.OK, CONTENT_TYPE_LATEST, health.metrics())
            except TimeoutError:
                self._send_reasons(["the event loop is busy"])
        else:
            self._send_json(HTTPStatus.NOT_FOUND, {"error": "try /livez, /readyz or /metrics"})

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def _send_reasons(self, reasons: list[str]) -> None:
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        self._send_json(status, {"ok": not reasons, "reasons": reasons})

    def _send_json(self, status: HTTPStatus, body: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(body).encode() + b"\n")

    def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Not logged: requests come every few seconds."""
