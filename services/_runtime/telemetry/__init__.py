"""Logs, metrics and traces."""

from services._runtime.skipped_import import not_imported

with not_imported("rich"):  # structlog's coloured tracebacks, which our logs do not hold
    import structlog  # noqa: F401 - imported here before anything else imports it
