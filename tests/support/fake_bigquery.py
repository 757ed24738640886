"""BigQuery's REST interface on a port, with a billing export in it. It executes the SQL, on DuckDB.

What is translated between the two dialects: `` `a.b.c` `` becomes ``"a.b.c"``, the name under which the table is
registered, and ``@name`` becomes ``$name``. Everything else (UNNEST of repeated structs, the correlated sum over
credits, IF, IFNULL, NULLIF, GROUP BY an alias) runs as it is written. The table has the columns of the standard
export that concern labels, times, costs and credits, with their types.
"""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import duckdb

from tests.support.fake_vertex import START

COLUMNS = """
    billing_account_id VARCHAR, service STRUCT(id VARCHAR, description VARCHAR),
    sku STRUCT(id VARCHAR, description VARCHAR), usage_start_time TIMESTAMPTZ, usage_end_time TIMESTAMPTZ,
    project STRUCT(id VARCHAR, name VARCHAR), labels STRUCT("key" VARCHAR, "value" VARCHAR)[],
    system_labels STRUCT("key" VARCHAR, "value" VARCHAR)[], location STRUCT(region VARCHAR), export_time TIMESTAMPTZ,
    cost DOUBLE, currency VARCHAR, currency_conversion_rate DOUBLE,
    usage STRUCT(amount DOUBLE, unit VARCHAR, amount_in_pricing_units DOUBLE, pricing_unit VARCHAR),
    credits STRUCT(name VARCHAR, amount DOUBLE, full_name VARCHAR, id VARCHAR, "type" VARCHAR)[],
    invoice STRUCT(month VARCHAR), cost_type VARCHAR
"""
_TYPES = {"STRING": str, "FLOAT64": float, "FLOAT": float, "INT64": int, "TIMESTAMP": datetime.fromisoformat}


def translate(sql: str) -> str:
    """The statement in DuckDB's dialect."""
    return re.sub(r"@(\w+)", r"$\1", sql.replace("`", '"'))


@dataclass(slots=True)
class HttpFailure:
    """What goes wrong with the next queries."""

    status: int
    reason: str
    times: int = 1


@dataclass(slots=True)
class FakeBigQuery:
    """A project with one table."""

    table: str = "p.billing.gcp_billing_export_v1_0A1B2C"
    failures: list[HttpFailure] = field(default_factory=list)
    unfinished: int = 0
    """So many answers to queries say that the job is not done yet."""
    statements: list[str] = field(default_factory=list)
    """What was executed, as it came."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: dict[str, dict[str, Any]] = field(default_factory=dict)
    _database: duckdb.DuckDBPyConnection = field(default_factory=duckdb.connect)

    def __post_init__(self) -> None:
        self._database.execute("SET TimeZone = 'UTC'")
        self._database.execute(f'CREATE TABLE "{self.table}" ({COLUMNS})')

    def charge(
        self,
        labels: dict[str, str],
        cost: float,
        *,
        credits_usd: Sequence[float] = (),
        at: datetime = START,
        currency: tuple[str, float | None] = ("USD", 1.0),
    ) -> None:
        """Add a row, as the export does: one per SKU and hour."""
        values = {
            "labels": [{"key": key, "value": value} for key, value in labels.items()],
            "system_labels": [{"key": "compute.googleapis.com/cores", "value": "4"}],
            "cost": cost,
            "currency": currency[0],
            "currency_conversion_rate": currency[1],
            "usage_start_time": at,
            "usage_end_time": at,
            "export_time": at,
            "credits": [
                {"name": "discount", "amount": amount, "full_name": "", "id": "", "type": "DISCOUNT"}
                for amount in credits_usd
            ],
            "cost_type": "regular",
        }
        names = ", ".join(values)
        places = ", ".join(f"${name}" for name in values)
        with self._lock:
            self._database.execute(f'INSERT INTO "{self.table}" ({names}) VALUES ({places})', values)

    def run(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Answer a query request: HTTP status and body."""
        failure = self._next_failure()
        if failure is not None:
            return _error(failure.status, failure.reason, "as told")
        self.statements.append(body["query"])
        try:
            with self._lock:
                found = self._database.execute(translate(body["query"]), _parameters(body))
                columns = [(column[0], _type_name(str(column[1]))) for column in found.description or ()]
                rows = found.fetchall()
        except duckdb.Error as error:
            return _error(400, "invalidQuery", str(error).partition("\n")[0])
        return 200, _reply(columns, rows)

    def submit(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """POST .../queries: at once, or later under the job's id."""
        status, reply = self.run(body)
        if status != 200 or self.unfinished <= 0:
            return status, reply
        self._waiting[reply["jobReference"]["jobId"]] = reply
        return 200, {"kind": "bigquery#queryResponse", "jobComplete": False, "jobReference": reply["jobReference"]}

    def insert(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """POST .../jobs: only dry runs come this way."""
        query = body["configuration"]["query"]
        status, reply = self.run(query)
        if status != 200:
            return status, reply
        job = {
            "kind": "bigquery#job",
            "id": "p:US.dry",
            "jobReference": reply["jobReference"],
            "configuration": body["configuration"],
            "status": {"state": "DONE"},
            "statistics": {"totalBytesProcessed": "4096", "query": {"totalBytesProcessed": "4096"}},
        }
        return 200, job

    def results(self, job: str) -> tuple[int, dict[str, Any]]:
        """GET .../queries/{job}."""
        if job not in self._waiting:
            return _error(404, "notFound", f"no job {job}")
        self.unfinished -= 1
        reply = self._waiting[job]
        if self.unfinished > 0:
            return 200, {**reply, "jobComplete": False, "rows": []}
        return 200, {**reply, "kind": "bigquery#getQueryResultsResponse"}

    def status(self, job: str) -> tuple[int, dict[str, Any]]:
        """GET .../jobs/{job}."""
        reference = {"projectId": "p", "jobId": job, "location": "US"}
        table = {"projectId": "p", "datasetId": "_anonymous", "tableId": "t"}
        return 200, {
            "kind": "bigquery#job",
            "jobReference": reference,
            "status": {"state": "DONE" if self.unfinished <= 0 else "RUNNING"},
            "configuration": {"jobType": "QUERY", "query": {"query": "", "destinationTable": table}},
            "statistics": {"query": {"statementType": "SELECT"}},
        }

    def _next_failure(self) -> HttpFailure | None:
        if not self.failures:
            return None
        self.failures[0].times -= 1
        return self.failures.pop(0) if self.failures[0].times <= 0 else self.failures[0]


def _parameters(body: dict[str, Any]) -> dict[str, Any]:
    return {
        parameter["name"]: _TYPES[parameter["parameterType"]["type"]](parameter["parameterValue"]["value"])
        for parameter in body.get("queryParameters", ())
    }


def _type_name(duckdb_type: str) -> str:
    kinds = {"VARCHAR": "STRING", "STRING": "STRING", "DOUBLE": "FLOAT", "NUMBER": "FLOAT", "BIGINT": "INTEGER"}
    return kinds.get(duckdb_type, "INTEGER" if "INT" in duckdb_type else "STRING")


def _reply(columns: list[tuple[str, str]], rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    return {
        "kind": "bigquery#queryResponse",
        "jobComplete": True,
        "jobReference": {"projectId": "p", "jobId": f"job{id(rows)}", "location": "US"},
        "schema": {"fields": [{"name": name, "type": kind, "mode": "NULLABLE"} for name, kind in columns]},
        "totalRows": str(len(rows)),
        "rows": [{"f": [{"v": None if cell is None else str(cell)} for cell in row]} for row in rows],
    }


def _error(status: int, reason: str, text: str) -> tuple[int, dict[str, Any]]:
    detail = {"reason": reason, "message": text, "domain": "global"}
    return status, {"error": {"code": status, "message": text, "errors": [detail], "status": reason}}


class BigQueryServer:
    """A `FakeBigQuery` on a port."""

    def __init__(self, fake: FakeBigQuery) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
                insert = urlsplit(self.path).path.endswith("/jobs")
                self._answer(*(fake.insert(body) if insert else fake.submit(body)))

            def do_GET(self) -> None:
                parts = urlsplit(self.path).path.split("/")
                self._answer(*(fake.results(parts[-1]) if parts[-2] == "queries" else fake.status(parts[-1])))

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """For `CollectorSettings.billing_endpoint`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        """Refuse connections."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
