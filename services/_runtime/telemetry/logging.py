"""Structured logging: events with a constant name and keys, as JSON or, on a terminal, as coloured lines."""

from __future__ import annotations

import errno
import logging as stdlib_logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final, Literal, TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger, Processor

from services._runtime.stdout import discard
from services._runtime.telemetry.tracing import trace_ids

LogFormat = Literal["auto", "json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]
Logger = FilteringBoundLogger
_READER_GONE: Final = {errno.EPIPE, errno.EIO}
"""Of a pipe, and of a terminal."""


def setup_logging(service: str, *, level: LogLevel, log_format: LogFormat, stream: TextIO | None = None) -> None:
    """Send all logs, libraries' included, to ``stream`` (default: standard error), one line each."""
    target = cast("TextIO", _LogStream(stream or sys.stderr))
    as_json = log_format == "json" or (log_format == "auto" and not target.isatty())
    colors = target.isatty() and not os.environ.get("NO_COLOR")
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_service(service),
        _add_trace,
    ]
    # Without local variables: they hold message contents, and could hold secrets.
    frames = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    renderer: list[Processor] = (
        [structlog.processors.ExceptionRenderer(frames), structlog.processors.JSONRenderer(default=str)]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]
    )
    threshold = stdlib_logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    )
    handler = stdlib_logging.StreamHandler(target)
    handler.setFormatter(formatter)
    handler.addFilter(_RateLimitFilter("opentelemetry"))
    stdlib_logging.basicConfig(handlers=[handler], level=max(threshold, stdlib_logging.WARNING), force=True)


class _LogStream:
    """Where logs go. Once their reader is gone they are dropped: a service works, and stops, without one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def isatty(self) -> bool:
        """As the stream's."""
        return self._stream.isatty()

    def write(self, text: str) -> int:
        """As the stream's."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._drop(error)
        return len(text)

    def flush(self) -> None:
        """As the stream's."""
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        if error.errno not in _READER_GONE:
            raise error
        discard(self._stream)


def get_logger(component: str) -> Logger:
    """A logger whose events have the key ``component``; may be made before `setup_logging` is called."""
    logger: Logger = structlog.get_logger(component=component)
    return logger


def _add_service(service: str) -> Processor:
    def add(_logger: Any, _method: str, event: Any) -> Any:
        event["service"] = service
        return event

    return add


def _add_trace(_logger: Any, _method: str, event: Any) -> Any:
    ids = trace_ids()
    if ids is not None:
        event["trace_id"], event["span_id"] = ids
    return event


class LogLimiter:
    """Rate limiter: admits an event kind at most once per interval, and counts the suppressed ones."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._next_s: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    def admit(self, kind: str, every_s: float = 1.0) -> int | None:
        """Number of events of this kind suppressed since the last admitted one; None: suppress this one."""
        now = self._monotonic()
        if now < self._next_s.get(kind, float("-inf")):
            self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
            return None
        self._next_s[kind] = now + every_s
        return self._suppressed.pop(kind, 0)


def log_once(log: Callable[..., Any], limiter: LogLimiter, kind: str, every_s: float = 1.0, **keys: Any) -> None:
    """Log event ``kind`` through ``log`` (such as ``logger.warning``) unless the limiter suppresses it."""
    suppressed = limiter.admit(kind, every_s)
    if suppressed is not None:
        log(kind, **keys, **({"suppressed": suppressed} if suppressed else {}))


class _RateLimitFilter(stdlib_logging.Filter):
    """Limits repeated log records of a library to one a minute: a collector may be down for days."""

    _every_s = 60.0

    def __init__(self, library: str) -> None:
        super().__init__(library)
        self._limiter = LogLimiter()

    def filter(self, record: stdlib_logging.LogRecord) -> bool:
        return not super().filter(record) or self._limiter.admit(str(record.msg), self._every_s) is not None
