"""Google's cloud as the collector meets it: Vertex AI over gRPC and BigQuery over REST, on ports of this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from services.collector.settings import CollectorSettings
from tests.support.fake_bigquery import BigQueryServer, FakeBigQuery, HttpFailure
from tests.support.fake_vertex import Failure, FakeVertex, Fate, VertexServer

__all__ = ["Failure", "FakeBigQuery", "FakeGoogleCloud", "FakeVertex", "Fate", "HttpFailure"]


@dataclass(slots=True)
class FakeGoogleCloud:
    """Both services; a context manager."""

    vertex: FakeVertex = field(default_factory=FakeVertex)
    bigquery: FakeBigQuery = field(default_factory=FakeBigQuery)
    _servers: list[VertexServer | BigQueryServer] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._servers = [VertexServer(self.vertex), BigQueryServer(self.bigquery)]
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.stop()

    @property
    def endpoints(self) -> tuple[str, str]:
        """Of Vertex AI and of BigQuery."""
        return self._servers[0].endpoint, self._servers[1].endpoint

    def settings(self, *, billing: bool = True, **changes: Any) -> CollectorSettings:
        """Settings that lead here, without patience."""
        vertex, bigquery = self.endpoints
        given = {
            "project": "p",
            "vertex_endpoint": vertex,
            "billing_endpoint": bigquery,
            "billing_table": self.bigquery.table if billing else None,
            "poll_s": 0.05,
            "billing_poll_s": 0.05,
            "cost_stable_polls": 1,
            "cost_min_age_hours": 0.0,
        }
        return CollectorSettings.load({}, **(given | changes))

    def environment(self, *, billing: bool = True, **changes: str) -> dict[str, str]:
        """The same as environment variables, for processes."""
        vertex, bigquery = self.endpoints
        given = {
            "PROJECT": "p",
            "VERTEX_ENDPOINT": vertex,
            "BILLING_ENDPOINT": bigquery,
            "BILLING_TABLE": self.bigquery.table if billing else "",
            "POLL_S": "0.05",
            "BILLING_POLL_S": "0.05",
            "COST_STABLE_POLLS": "1",
            "COST_MIN_AGE_HOURS": "0",
        }
        return {f"TURNBUCKLE_COLLECTOR__{name}": value for name, value in (given | changes).items()}
