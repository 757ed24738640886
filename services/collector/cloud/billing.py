"""Costs from the Cloud Billing export in BigQuery (thesis 4.4.2). The client is given: its endpoint may be a test's.

The export holds a row per SKU and hour, and rows that correct earlier ones. ``labels`` and ``credits`` are repeated:
a row has many labels, so unnesting them multiplies rows unless one key is chosen; ``credits`` are negative amounts.
``cost`` is in the account's currency; ``currency_conversion_rate`` is that currency's price of a dollar.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from google.cloud import bigquery

from services.collector.cloud.cost_settlement import BilledCost
from services.collector.cloud.vertex import as_cloud_errors
from services.collector.settings import check_table

_CALL_S: Final = 60.0
_RETRY_S: Final = 120.0
_NO_RETRY: Final[dict[str, Any]] = {"retry": None, "job_retry": None}  # annotated without None there

_COSTS: Final = """\
SELECT
  label.value AS job,
  SUM(
    (cost + IFNULL((SELECT SUM(credit.amount) FROM UNNEST(credits) AS credit), 0))
    / IF(currency = 'USD', 1, NULLIF(currency_conversion_rate, 0))
  ) AS usd,
  COUNT(*) AS row_count,
  SUM(IF(currency = 'USD' OR currency_conversion_rate > 0, 0, 1)) AS unconverted_rows
FROM `{table}`, UNNEST(labels) AS label
WHERE label.key = @label AND usage_start_time >= @since
GROUP BY job
ORDER BY job"""


def costs_sql(table: str) -> str:
    """The statement. Only the table's name, which cannot be a parameter, is written into it.

    Raises:
        ValueError: the text is not a table's name.
    """
    return _COSTS.format(table=check_table(table))


class BigQueryBilling:
    """`services.collector.cloud.ports.Billing` on one table or view."""

    def __init__(self, client: bigquery.Client, table: str, label: str, *, retry_s: float = _RETRY_S) -> None:
        self._client = client
        self._sql = costs_sql(table)
        self._table = table
        self._label = label
        retry: Any = bigquery.DEFAULT_RETRY
        self._call_options: dict[str, Any] = {
            "api_timeout": _CALL_S,
            "wait_timeout": retry_s,
            "retry": retry.with_timeout(retry_s),
            "job_retry": None,
        }

    def costs(self, since: datetime) -> dict[str, BilledCost]:
        """Costs by label value."""
        with as_cloud_errors(f"read {self._table}"):
            rows = list(
                self._client.query_and_wait(self._sql, job_config=self._configuration(since), **self._call_options)
            )
        return {
            row["job"]: BilledCost(float(row["usd"] or 0.0), int(row["row_count"]), int(row["unconverted_rows"]))
            for row in rows
        }

    def estimated_bytes(self, since: datetime) -> int:
        """Bytes that the statement would read; a dry run, which is not billed."""
        configuration = self._configuration(since)
        configuration.dry_run = True
        configuration.use_query_cache = False
        with as_cloud_errors(f"estimate a query of {self._table}"):
            job = self._client.query(self._sql, job_config=configuration, timeout=_CALL_S, **_NO_RETRY)
            return int(job.total_bytes_processed or 0)

    def _configuration(self, since: datetime) -> bigquery.QueryJobConfig:
        return bigquery.QueryJobConfig(
            query_parameters=[
                bigquery.ScalarQueryParameter("label", "STRING", self._label),
                bigquery.ScalarQueryParameter("since", "TIMESTAMP", since),
            ]
        )

    def close(self) -> None:
        """Close the connection."""
        client: Any = self._client
        client.close()


def open_client(project: str, endpoint: str | None, credentials: Any | None) -> bigquery.Client:
    """A client of BigQuery, or of another endpoint.

    Raises:
        CloudForbiddenError: there are no credentials.
    """
    options = {"api_endpoint": endpoint} if endpoint is not None else None
    with as_cloud_errors("connect to BigQuery"):
        return bigquery.Client(project=project, credentials=credentials, client_options=options)
