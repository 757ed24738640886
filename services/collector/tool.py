"""Shell of the collector's tools: events as JSON lines on standard output, text on standard error, exit codes."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Final, NoReturn

from services._runtime.bus.api import BusError, BusSettingsError
from services._runtime.bus.nats import NatsBus
from services._runtime.command.errors import BadFileError, CommandError, UnavailableError
from services._runtime.command.tool_events import emit, emit_error, say
from services._runtime.exit_code import ExitCode
from services._runtime.settings_error import SettingsError
from services._runtime.state_home import state_home
from services._runtime.stdout import discard_stdout
from services._runtime.telemetry.logging import setup_logging
from services._runtime.telemetry.otel_lifetime import exporting_spans
from services._runtime.telemetry.otel_settings import Origin, read_otel_settings
from services.collector.publishing import Publisher
from services.collector.settings import CollectorSettings
from services.collector.write_ahead_log import Journal, JournalError, Record, record_id

OUT_HELP: Final = "directory of the journal (default: below the user's state directory)"
_SERVICE: Final = "collector-tool"
"""Service name in traces."""
_LEAST_CORES, _MOST_CORES = 0.01, 1024.0
"""Of a sandbox."""
_CONNECT_S: Final = 5.0
_CLOSE_S: Final = 5.0


class BadDataError(CommandError):
    """A file or a value is invalid."""

    exit_code = ExitCode.BAD_DATA


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


def sandbox_cores(text: str) -> float:
    """An argparse type: the cores of a sandbox's CPU quota."""
    return float(number_within(float, _LEAST_CORES, _MOST_CORES)(text))


def run_tool(name: str, work: Callable[[], int]) -> NoReturn:
    """Run a tool as this process: errors become an ``error`` event, a sentence and an exit code."""
    setup_logging(name, level="error", log_format="console")  # errors are printed, not logged
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs begin with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(work())
    except (CommandError, JournalError, BusError, SettingsError) as error:
        sys.exit(_fail(str(error), _exit_code(error)))
    except KeyboardInterrupt:
        sys.exit(_fail("interrupted; what was finished is kept", ExitCode.INTERRUPTED))
    except BrokenPipeError:
        discard_stdout()
        sys.exit(ExitCode.UNAVAILABLE)
    except Exception as error:  # noqa: BLE001 - whatever it is, its exit code is 70
        traceback.print_exc()
        sys.exit(_fail(f"internal error: {type(error).__name__}: {error}", ExitCode.INTERNAL))


def _exit_code(error: Exception) -> int:
    if isinstance(error, BadDataError) and _is_missing_file(error):
        return ExitCode.NO_INPUT
    if isinstance(error, CommandError):
        return error.exit_code
    return ExitCode.BAD_CONFIG if isinstance(error, SettingsError | BusSettingsError) else ExitCode.UNAVAILABLE


def _is_missing_file(error: BaseException | None) -> bool:
    """Whether an error was raised from a `FileNotFoundError`, directly or over others."""
    return error is not None and (isinstance(error, FileNotFoundError) or _is_missing_file(error.__cause__))


def _fail(text: str, code: int) -> int:
    say(text if code == ExitCode.INTERRUPTED else f"error: {text}")
    return emit_error(text, code)


def default_directory(tool: str) -> Path:
    """The default directory of a tool's journal: below the user's state directory."""
    return state_home() / tool


@asynccontextmanager
async def bus_of_tool(settings: CollectorSettings) -> AsyncIterator[NatsBus]:
    """A connection for a tool's work, whose spans are exported.

    Raises:
        BusError: no server, or the settings do not fit it.
        SettingsError: the settings are invalid.
    """
    options = replace(settings.bus_options(), connect_deadline_s=_CONNECT_S, name="turnbuckle-collector-tool")
    with exporting_spans(read_otel_settings(_SERVICE, os.environ), Origin(_SERVICE, version("turnbuckle"))):
        bus = await NatsBus.connect(options)
        try:
            yield bus
        finally:
            await bus.close(_CLOSE_S)


async def publish_to_bus(journal: Journal, settings: CollectorSettings) -> Publisher:
    """Connect, publish the journal's unpublished records, and emit ``published`` events.

    Raises:
        UnavailableError: no server, or not everything was accepted; the journal keeps the rest.
        BadFileError: the settings do not fit the server.
        SettingsError: the settings are invalid.
    """
    try:
        async with bus_of_tool(settings) as bus:
            publisher = Publisher(journal, bus, _emit_published)
            await publisher.publish()
    except BusError as error:
        kept = f"{journal.waiting} records are kept in {journal.directory}; the next run publishes them"
        kind = BadFileError if isinstance(error, BusSettingsError) else UnavailableError
        raise kind(f"{error}. {kept}") from error
    return publisher


def _emit_published(record: Record, sent: bool) -> None:
    emit("published", id=record_id(record), already_there=not sent)
