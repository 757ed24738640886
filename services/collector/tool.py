"""Shell of the collector's tools: events as JSON lines on standard output, text on standard error, exit codes."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Final, NoReturn

from services._runtime.bus.api import BusError, BusSettingsError
from services._runtime.bus.nats import NatsBus
from services._runtime.command.tool_events import emit, emit_error, say
from services._runtime.command.tool_parser import EXIT_USAGE
from services._runtime.settings_error import SettingsError
from services._runtime.stdout import discard_stdout
from services._runtime.telemetry.logging import setup_logging
from services._runtime.telemetry.otel_lifetime import exporting_spans
from services._runtime.telemetry.otel_settings import Origin, read_otel_settings
from services.collector.publishing import Publisher
from services.collector.settings import CollectorSettings
from services.collector.write_ahead_log import Journal, JournalError, Record, record_id

EXIT_OK: Final = 0
EXIT_DATA: Final = 65
EXIT_NO_INPUT: Final = 66
EXIT_UNAVAILABLE: Final = 69
EXIT_INTERNAL: Final = 70
EXIT_CONFIG: Final = 78
EXIT_INTERRUPTED: Final = 130

OUT_HELP: Final = "directory of the journal (default: below the user's state directory)"
_SERVICE: Final = "collector-tool"
"""Service name in traces."""
_CONNECT_S: Final = 5.0
_CLOSE_S: Final = 5.0


class ToolError(Exception):
    """Ends a tool. The message gives the reason and the remedy."""

    exit_code: int = EXIT_DATA


class BadDataError(ToolError):
    """A file or a value is invalid."""


class UnavailableError(ToolError):
    """Something that the tool needs is unavailable."""

    exit_code = EXIT_UNAVAILABLE


class BadSettingsError(ToolError):
    """A setting, or a file named in one, is invalid."""

    exit_code = EXIT_CONFIG


class UsageError(ToolError):
    """The command line is invalid."""

    exit_code = EXIT_USAGE


def number_within(kind: type[int | float], least: float, most: float) -> Callable[[str], int | float]:
    """An argparse type: a number within bounds."""

    def convert(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
        if not least <= value <= most:  # also refuses NaN
            raise argparse.ArgumentTypeError(f"{text} is not within {least:g} and {most:g}")
        return value

    return convert


def run_tool(name: str, work: Callable[[], int]) -> NoReturn:
    """Run a tool as this process: errors become an ``error`` event, a sentence and an exit code."""
    setup_logging(name, level="error", log_format="console")  # errors are printed, not logged
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs begin with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(work())
    except (ToolError, JournalError, BusError, SettingsError) as error:
        sys.exit(_fail(str(error), _exit_code(error)))
    except KeyboardInterrupt:
        sys.exit(_fail("interrupted; what was finished is kept", EXIT_INTERRUPTED))
    except BrokenPipeError:
        discard_stdout()
        sys.exit(EXIT_UNAVAILABLE)
    except Exception as error:  # noqa: BLE001 - whatever it is, its exit code is 70
        traceback.print_exc()
        sys.exit(_fail(f"internal error: {type(error).__name__}: {error}", EXIT_INTERNAL))


def _exit_code(error: Exception) -> int:
    if isinstance(error, BadDataError) and _is_missing_file(error):
        return EXIT_NO_INPUT
    if isinstance(error, ToolError):
        return error.exit_code
    return EXIT_CONFIG if isinstance(error, SettingsError | BusSettingsError) else EXIT_UNAVAILABLE


def _is_missing_file(error: BaseException | None) -> bool:
    """Whether an error was raised from a `FileNotFoundError`, directly or over others."""
    return error is not None and (isinstance(error, FileNotFoundError) or _is_missing_file(error.__cause__))


def _fail(text: str, code: int) -> int:
    say(text if code == EXIT_INTERRUPTED else f"error: {text}")
    return emit_error(text, code)


def default_directory(tool: str) -> Path:
    """The default directory of a tool's journal: below the user's state directory."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "turnbuckle" / tool


async def publish_to_bus(journal: Journal, settings: CollectorSettings) -> Publisher:
    """Connect, publish the journal's unpublished records, and emit ``published`` events.

    Raises:
        UnavailableError: no server, or not everything was accepted; the journal keeps the rest.
        BadSettingsError: the settings do not fit the server.
        SettingsError: the settings are invalid.
    """
    otel = read_otel_settings(_SERVICE, os.environ)
    options = replace(settings.bus_options(), connect_deadline_s=_CONNECT_S, name="turnbuckle-collector-tool")
    try:
        with exporting_spans(otel, Origin(_SERVICE, version("turnbuckle"))):
            bus = await NatsBus.connect(options)
            try:
                publisher = Publisher(journal, bus, _emit_published)
                await publisher.publish()
            finally:
                await bus.close(_CLOSE_S)
    except BusError as error:
        kept = f"{journal.waiting} records are kept in {journal.directory}; the next run publishes them"
        kind = BadSettingsError if isinstance(error, BusSettingsError) else UnavailableError
        raise kind(f"{error}. {kept}") from error
    return publisher


def _emit_published(record: Record, sent: bool) -> None:
    emit("published", id=record_id(record), already_there=not sent)
