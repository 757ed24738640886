"""`turnbuckle tap SUBJECT`: what travels on the bus, as JSON lines."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import signal
from typing import Annotated, Any, Final

import typer

from schemas.codec import CodecError, decode, to_plain
from schemas.subjects import SubjectError, wildcard
from services._runtime.bus.nats_tap import tap
from services._runtime.bus.options import BusOptions
from services._runtime.command.connection import ContextOption, ServerOption, connected, find_server
from services._runtime.command.output import print_json, print_line
from services.cli.network.lines import network_line

MAX_WAITING: Final = 10_000
"""Messages between the bus and a slow reader; the newest beyond are dropped, and the tap says how many."""
PUBLISHED: Final = ("obs.>", "evt.>")
"""Observations and events: all that a person's key may subscribe to."""
EXAMPLES = """
On a server with keys (`turnbuckle nats config`) operators and observers see
observations (obs), events (evt) and, with --absolute, buckets ($KV); commands
(cmd) are for services only. On a server without keys '>' shows all of them.

Examples:

  turnbuckle tap 'obs.cfs.shop.>'

  turnbuckle tap 'evt.oom.>' | jq '{kind, cause, container, usage_bytes, limit_after_bytes, latency_us, reason}'

  turnbuckle tap 'obs.>' --for 5 | jq .rows

  turnbuckle tap 'evt.route.>' --text
"""


def tap_command(  # noqa: PLR0913 - a command's options are its parameters
    subject: Annotated[
        str | None,
        typer.Argument(
            help="Subject or pattern, with or without the root 'tb.'; default: 'obs.>' and 'evt.>'.",
            show_default=False,
        ),
    ] = None,
    *,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after so many messages.")] = None,
    seconds: Annotated[float | None, typer.Option("--for", min=0, help="Stop after so many seconds.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Show payloads in base64 instead of decoding them.")] = False,
    text: Annotated[
        bool, typer.Option("--text", help="A line for people instead of JSON, where there is one (evt.route, evt.tc).")
    ] = False,
    absolute: Annotated[bool, typer.Option("--absolute", help="Take SUBJECT as it stands, outside the root.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines: what tap prints anyway.")] = True,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Print every message of SUBJECT as one line of JSON. Ends cleanly on Ctrl-C and when the reader goes away."""
    del as_json
    options = find_server(server, context)
    if subject is None and absolute:
        raise typer.BadParameter("--absolute needs a SUBJECT")
    subjects = PUBLISHED if subject is None else (subject,)
    patterns = [_pattern(options, each, absolute=absolute) for each in subjects]
    asyncio.run(_Tap(options, raw=raw, text=text).run(patterns, count, seconds))


def _pattern(options: BusOptions, subject: str, *, absolute: bool) -> str:
    if absolute:
        return subject
    try:
        return wildcard(options.root, subject).text
    except SubjectError as error:
        raise typer.BadParameter(str(error)) from error


def describe(subject: str, data: bytes, *, raw: bool) -> dict[str, Any]:
    """One message as plain JSON types, whatever it holds."""
    head: dict[str, Any] = {"subject": subject}
    if raw:
        return head | {"size_bytes": len(data), "base64": base64.b64encode(data).decode()}
    if not data:
        return head | {"size_bytes": 0}
    try:
        return head | to_plain(decode(data))
    except CodecError as error:
        return head | {"undecodable": str(error), "size_bytes": len(data)}


def sentence(data: bytes) -> str | None:
    """A message as a line for people; None: there is none for its type, or it cannot be decoded."""
    try:
        return network_line(decode(data)) if data else None
    except CodecError:
        return None


class _Tap:
    """Between the bus, which must not wait, and stdout, which may."""

    def __init__(self, options: BusOptions, *, raw: bool, text: bool = False) -> None:
        # No stream or bucket is needed to listen, so none is made, and a server without JetStream will do.
        self._options = dataclasses.replace(options, streams=(), buckets=(), object_stores=())
        self._raw = raw
        self._text = text
        self._waiting: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue()
        self._dropped = 0

    async def run(self, patterns: list[str], count: int | None, seconds: float | None) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._waiting.put_nowait, None)
        async with connected(self._options) as bus:
            for pattern in patterns:
                await tap(bus, pattern, self._receive)
            if seconds is not None:
                loop.call_later(seconds, self._waiting.put_nowait, None)
            await self._print(count)

    def _receive(self, subject: str, data: bytes) -> None:
        if self._waiting.qsize() < MAX_WAITING:
            self._waiting.put_nowait((subject, data))
        else:
            self._dropped += 1

    async def _print(self, count: int | None) -> None:
        printed = 0
        while (count is None or printed < count) and (item := await self._waiting.get()) is not None:
            if self._dropped:
                print_json({"dropped": self._dropped}, indent=None)
                self._dropped = 0
            if self._text and (line := sentence(item[1])) is not None:
                print_line(line)
            else:
                print_json(describe(*item, raw=self._raw), indent=None)
            printed += 1
