"""The billing export: the SQL is executed, on a table of the export's schema."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from services.collector.cloud.billing import BigQueryBilling, costs_sql, open_client
from services.collector.cloud.cost_settlement import BilledCost
from services.collector.cloud.ports import (
    CloudBusyError,
    CloudError,
    CloudForbiddenError,
    CloudRefusedError,
    CloudUncertainError,
)
from services.collector.cloud.providers import open_providers
from services.collector.settings import CollectorSettings
from tests.support.fake_bigquery import translate
from tests.support.fake_google_cloud import FakeGoogleCloud, HttpFailure
from tests.support.fake_vertex import START

LABEL = "turnbuckle_job"


@pytest.fixture
def google() -> Iterator[FakeGoogleCloud]:
    with FakeGoogleCloud() as fake:
        yield fake


@pytest.fixture
def billing(google: FakeGoogleCloud) -> Iterator[BigQueryBilling]:
    from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415 - the import takes a second

    client = open_client("p", google.endpoints[1], AnonymousCredentials())
    made = BigQueryBilling(client, google.bigquery.table, LABEL, retry_s=0.3)
    yield made
    made.close()


def test_costs_are_summed_over_rows_with_credits_and_one_label_key(
    google: FakeGoogleCloud, billing: BigQueryBilling
) -> None:
    """A row has many labels: unnested without a key it would count once for each of them."""
    labels = {"team": "ml", LABEL: "a", "goog-resource-type": "custom_job", "copy": "a"}
    google.bigquery.charge(labels, 10.0, credits_usd=(-2.5, -0.5))
    google.bigquery.charge(labels, 4.0)
    google.bigquery.charge({LABEL: "a"}, -1.0, credits_usd=())  # a correction
    google.bigquery.charge({LABEL: "b"}, 3.0, credits_usd=(-3.0,))
    google.bigquery.charge({"team": "a"}, 100.0)
    google.bigquery.charge({}, 100.0)

    # The first job: 10 - 2.5 - 0.5 + 4 - 1 = 10 USD; the second: 3 - 3 = 0 USD
    assert billing.costs(START) == {"a": BilledCost(10.0, 3), "b": BilledCost(0.0, 1)}


def test_only_what_was_used_since(google: FakeGoogleCloud, billing: BigQueryBilling) -> None:
    google.bigquery.charge({LABEL: "a"}, 1.0, at=START - timedelta(seconds=1))
    google.bigquery.charge({LABEL: "a"}, 2.0, at=START)

    assert billing.costs(START) == {"a": BilledCost(2.0, 1)}
    assert billing.costs(START.astimezone() - timedelta(days=1)) == {"a": BilledCost(3.0, 2)}


def test_other_currencies_are_converted_by_each_rows_rate(google: FakeGoogleCloud, billing: BigQueryBilling) -> None:
    google.bigquery.charge({LABEL: "a"}, 9.0, currency=("EUR", 0.9), credits_usd=(-1.8,))
    google.bigquery.charge({LABEL: "a"}, 8.0, currency=("EUR", 0.8))
    google.bigquery.charge({LABEL: "b"}, 5.0, currency=("USD", None))

    # (9 - 1.8) / 0.9 + 8 / 0.8 = 8 + 10 = 18
    found = billing.costs(START)
    assert found["a"].usd == pytest.approx(18.0)
    assert found["b"].usd == 5.0


@pytest.mark.parametrize("rate", [None, 0.0])
def test_a_row_without_a_rate_is_said_rather_than_left_out(
    google: FakeGoogleCloud, billing: BigQueryBilling, rate: float | None
) -> None:
    google.bigquery.charge({LABEL: "a"}, 9.0, currency=("EUR", 0.9))
    google.bigquery.charge({LABEL: "a"}, 9.0, currency=("EUR", rate))
    google.bigquery.charge({LABEL: "b"}, 9.0, currency=("EUR", 0.9))

    assert billing.costs(START) == {"a": BilledCost(10.0, 2, unconverted_rows=1), "b": BilledCost(10.0, 1)}


def test_nothing_yet_is_no_cost(billing: BigQueryBilling) -> None:
    assert billing.costs(START) == {}


def test_the_values_are_parameters_and_the_table_is_checked(google: FakeGoogleCloud, billing: BigQueryBilling) -> None:
    billing.costs(START)

    (statement,) = google.bigquery.statements
    assert statement == costs_sql(google.bigquery.table)
    assert "@label" in statement
    assert "@since" in statement
    assert LABEL not in statement
    for table in ("t", "a.b`; DROP TABLE x; --", "a.b.c d", "", "p.d.t`"):
        with pytest.raises(ValueError, match="is no table"):
            costs_sql(table)
    assert "`my-project.billing.gcp_billing_export_v1_01AB`" in costs_sql(
        "my-project.billing.gcp_billing_export_v1_01AB"
    )


def test_the_dialects_differ_by_quotes_and_parameters_only() -> None:
    sql = costs_sql("p.d.t")
    assert translate(sql) == sql.replace("`p.d.t`", '"p.d.t"').replace("@label", "$label").replace("@since", "$since")


def test_a_dry_run_reads_nothing(google: FakeGoogleCloud, billing: BigQueryBilling) -> None:
    assert billing.estimated_bytes(START) == 4096


def test_an_answer_that_takes_its_time_is_waited_for(google: FakeGoogleCloud, billing: BigQueryBilling) -> None:
    google.bigquery.charge({LABEL: "a"}, 1.0)
    google.bigquery.unfinished = 1

    assert billing.costs(START) == {"a": BilledCost(1.0, 1)}


def test_a_passing_failure_is_retried(google: FakeGoogleCloud, billing: BigQueryBilling) -> None:
    google.bigquery.failures = [HttpFailure(503, "backendError")]

    assert BigQueryBilling(billing._client, google.bigquery.table, LABEL, retry_s=20).costs(START) == {}


@pytest.mark.parametrize(
    ("failure", "meaning"),
    [
        (HttpFailure(503, "backendError", times=100), CloudUncertainError),
        (HttpFailure(500, "internalError", times=100), CloudUncertainError),
        (HttpFailure(403, "accessDenied"), CloudForbiddenError),
        (HttpFailure(401, "authError"), CloudForbiddenError),
        (HttpFailure(404, "notFound"), CloudForbiddenError),
        (HttpFailure(403, "quotaExceeded"), CloudBusyError),
        (HttpFailure(400, "invalidQuery"), CloudRefusedError),
    ],
)
def test_what_a_failure_means(
    google: FakeGoogleCloud, billing: BigQueryBilling, failure: HttpFailure, meaning: type[CloudError]
) -> None:
    google.bigquery.failures = [failure]
    with pytest.raises(meaning, match=f"read {google.bigquery.table}") as raised:
        billing.costs(START)
    assert type(raised.value) is meaning


def test_nobody_listens() -> None:
    with FakeGoogleCloud() as google:
        settings = google.settings()
    _, billing = open_providers(settings)
    assert isinstance(billing, BigQueryBilling)
    impatient = BigQueryBilling(billing._client, google.bigquery.table, LABEL, retry_s=0.3)
    with pytest.raises(CloudUncertainError, match=r"read p\.billing"):
        impatient.costs(START)
    impatient.close()


def test_a_key_that_is_none_is_refused_without_being_shown() -> None:
    settings = CollectorSettings.load({}, project="p", credentials='{"private_key": "very secret"}')
    with pytest.raises(CloudForbiddenError, match="no service account key") as raised:
        open_providers(settings)
    assert "secret" not in str(raised.value)
