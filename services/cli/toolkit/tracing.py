"""Traces that begin with a command: exported where ``OTEL_*`` variables ask for it, as those of every service are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from services._runtime.command.connection import CliSettings, quiet_logs
from services._runtime.command.errors import BadFileError
from services._runtime.settings_error import SettingsError
from services._runtime.telemetry.otel_lifetime import exporting_spans
from services._runtime.telemetry.otel_settings import Origin, read_otel_settings
from services._runtime.telemetry.tracing import span


@contextmanager
def traced(name: str, **attributes: Any) -> Iterator[None]:
    """The span of a command; what it asks services for continues its trace.

    Raises:
        BadFileError: a variable cannot be honoured; the message names it.
    """
    quiet_logs()
    try:
        settings = read_otel_settings(CliSettings.service, os.environ)
    except SettingsError as error:
        raise BadFileError(str(error)) from error
    with exporting_spans(settings, Origin(CliSettings.service, version("turnbuckle"))), span(name, **attributes):
        yield
