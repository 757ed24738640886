"""`turnbuckle console`: what the bus says, as a web page on this machine."""

from __future__ import annotations

import asyncio
import secrets
import signal
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from services._runtime.command.connection import ContextOption, ServerOption
from services._runtime.command.errors import CommandError, UnavailableError
from services._runtime.command.output import print_json, print_line, print_note

if TYPE_CHECKING:
    from services._runtime.bus.options import BusOptions
    from services.console.web import WebServer

PORT: Final = 8710
PORTS_TRIED: Final = 20
EXAMPLES: Final = """
Examples:

  turnbuckle console

  turnbuckle console --open

  turnbuckle console --server nats://gpu-01:4222 --port 9000

  TURNBUCKLE_NATS_NKEY_SEED_FILE=nats/secrets/observer.nk turnbuckle console

  ssh -L 8710:127.0.0.1:8710 gpu-01                 (the page of another machine, at the address printed there)
"""


def console_command(
    *,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help=f"Default: {PORT}, or the next free; 0: any.")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Show limits against usage, events, rules, paths and predictions in the browser, live, until Ctrl-C.

    The page is served on 127.0.0.1 only, and needs the key that stands in the address printed. It changes nothing and
    loads nothing from elsewhere: this command reads the bus for it, so the browser needs no way to NATS. Whatever may
    be read from it, an observer may read.
    """
    from services._runtime.command.connection import find_server  # noqa: PLC0415 - quick --help

    asyncio.run(_serve(find_server(server, context), port, open_browser=open_browser, as_json=as_json))


async def _serve(options: BusOptions, port: int | None, *, open_browser: bool, as_json: bool) -> None:
    from services._runtime.command.connection import connected  # noqa: PLC0415 - quick --help
    from services.console.hub import Hub, console_message  # noqa: PLC0415 - as above
    from services.console.source import follow_bus  # noqa: PLC0415 - as above
    from services.console.web import WebServer, load_files  # noqa: PLC0415 - as above

    files = load_files(Path(__file__).parent / "static")
    if "/" not in files:
        raise CommandError("the page was not built: run scripts/build_console.sh")
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    hub, key = Hub(), secrets.token_urlsafe(16)
    async with connected(options) as bus:

        def heartbeat() -> bytes:
            return console_message(
                "Beat", connected=bus.connected, server=options.address, root=bus.root, version=version("turnbuckle")
            )

        web = WebServer(files, hub, key, heartbeat)
        try:
            async with follow_bus(bus, hub):
                address = f"http://127.0.0.1:{await _listen(web, port)}/#key={key}"
                _announce(address, options, as_json=as_json)
                if open_browser:
                    typer.launch(address)
                await stop.wait()
        finally:
            await web.stop()


async def _listen(web: WebServer, port: int | None) -> int:
    candidates = range(PORT, PORT + PORTS_TRIED) if port is None else (port,)
    reason = ""
    for candidate in candidates:
        try:
            return await web.start(candidate)
        except OSError as error:
            reason = error.strerror or str(error)
    raise UnavailableError(f"port {candidates[0]} of 127.0.0.1 cannot be used ({reason}); choose another with --port")


def _announce(address: str, options: BusOptions, *, as_json: bool) -> None:
    if as_json:
        print_json({"url": address, "nats": options.address}, indent=None)
        return
    print_line(address)
    print_note(f"shows the bus at {options.address}; Ctrl-C ends it")
