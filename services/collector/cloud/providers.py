"""Cloud providers: opens the adapters, which are imported only if a cloud is configured."""

from __future__ import annotations

import json
from typing import Any, Final

from services._runtime.install_hint import package_missing
from services.collector.cloud.ports import Billing, CloudForbiddenError, TrainingCloud
from services.collector.settings import CollectorSettings

_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


def open_providers(settings: CollectorSettings) -> tuple[TrainingCloud, Billing | None]:
    """Connect to Vertex AI, and to BigQuery where a billing table is set. Takes seconds: Google's libraries are large.

    Raises:
        CloudForbiddenError: no project is set, there are no usable credentials, or the libraries are missing.
    """
    if settings.project is None:
        raise CloudForbiddenError("no cloud is configured: set TURNBUCKLE_COLLECTOR__PROJECT, or give --project")
    try:
        from services.collector.cloud import billing, vertex  # noqa: PLC0415 - large, and an extra of its own
    except ImportError as error:
        raise CloudForbiddenError(package_missing(error.name or "google.cloud", "vertex")) from error
    credentials = _credentials(settings)
    transport = vertex.open_transport(settings.region, settings.vertex_endpoint, credentials)
    cloud = vertex.VertexJobs(transport, settings.project, settings.region, settings.label)
    if settings.billing_table is None:
        return cloud, None
    client = billing.open_client(settings.project, settings.billing_endpoint, _for_billing(settings, credentials))
    return cloud, billing.BigQueryBilling(client, settings.billing_table, settings.label)


def _credentials(settings: CollectorSettings) -> Any | None:
    """Of the service account whose key is set; None: Application Default Credentials."""
    if settings.credentials is None:
        return None
    from google.oauth2 import service_account  # noqa: PLC0415 - as above

    try:
        key = json.loads(settings.credentials.get_secret_value())
        kind: Any = service_account.Credentials
        return kind.from_service_account_info(key, scopes=[_SCOPE])
    except (ValueError, TypeError, KeyError) as error:
        # Not the error's text: it may quote the key.
        raise CloudForbiddenError("TURNBUCKLE_COLLECTOR__CREDENTIALS is no service account key in JSON") from error


def _for_billing(settings: CollectorSettings, credentials: Any | None) -> Any | None:
    if settings.billing_endpoint is not None and settings.billing_endpoint.startswith("http://"):
        from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415 - as above

        anonymous: Any = AnonymousCredentials
        return anonymous()
    return credentials
