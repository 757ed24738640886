"""`turnbuckle console`: what the bus says, as a web page on this machine."""

from __future__ import annotations

import asyncio
import gc
import secrets
import signal
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer

from services._runtime.command.connection import ContextOption, ServerOption
from services._runtime.command.errors import BadFileError, CommandError, MissingFileError, UnavailableError, UsageError
from services._runtime.command.output import print_json, print_line, print_note
from services.console.listening import HOST, Listening

if TYPE_CHECKING:
    from services._runtime.bus.options import BusOptions
    from services.console.web import WebServer

PORT: Final = 8710
PORTS_TRIED: Final = 20
SHORTEST_KEY: Final = 20
"""Characters: a key that a person made up would be guessed."""
EXAMPLES: Final = """
Examples:

  turnbuckle console

  turnbuckle console --open

  turnbuckle console --server nats://gpu-01:4222 --port 9000

  TURNBUCKLE_NATS_NKEY_SEED_FILE=nats/secrets/observer.nk turnbuckle console

  ssh -L 8710:127.0.0.1:8710 gpu-01                 (the page of another machine, at the address printed there)

  (umask 077 && openssl rand -base64 24 > console.key)
  turnbuckle console --listen 0.0.0.0:8710 --key-file console.key --tls-cert console.crt --tls-key console.pem
"""


@dataclass(frozen=True, slots=True)
class Serving:
    """Where the page is served, and to whom."""

    listening: Listening
    key: str
    key_file: Path | None = None
    """Whoever reads knows the key from elsewhere; None: it is printed with the address."""
    ports: tuple[int, ...] = ()
    """Tried one after another."""

    def address(self, port: int) -> str:
        """For a browser."""
        scheme = "http" if self.listening.tls is None else "https"
        host = self.listening.host
        with suppress(ValueError):  # a name is shown as it is
            address = ip_address(host)
            named = f"[{host}]" if address.version == 6 else host
            host = socket.gethostname() if address.is_unspecified else named
        return f"{scheme}://{host}:{port}/" + ("" if self.key_file else f"#key={self.key}")


def console_command(  # noqa: PLR0913 - a command's options are its parameters
    *,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help=f"Default: {PORT}, or the next free; 0: any.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="ADDRESS:PORT", help="For others, too: needs --key-file.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="The key that every reader gives once; default: a new one.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Serve by https, with this certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="The certificate's private key.")] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Show limits against usage, events, rules, paths and predictions in the browser, live, until Ctrl-C.

    The page is served on 127.0.0.1, and needs the key that stands in the address printed; with --listen and --key-file
    a team reads it. It changes nothing and loads nothing from elsewhere: this command reads the bus for it, so the
    browser needs no way to NATS. Whatever may be read from it, an observer may read.
    """
    from services._runtime.command.connection import find_server  # noqa: PLC0415 - quick --help

    serving = Serving(find_listening(port, listen), *_find_key(key_file))
    if listen is None and port is None:
        serving = replace(serving, ports=tuple(range(PORT, PORT + PORTS_TRIED)))
    if not serving.listening.on_loopback and key_file is None:
        raise UsageError(f"--listen {listen} is not of the loopback: readers need a key, name a file by --key-file")
    serving = replace(serving, listening=replace(serving.listening, tls=_load_tls(tls_cert, tls_key)))
    if not serving.listening.on_loopback and serving.listening.tls is None:
        print_note("key and page travel unencrypted: give --tls-cert and --tls-key, or put a TLS proxy before it")
    asyncio.run(_serve(find_server(server, context), serving, open_browser=open_browser, as_json=as_json))


def find_listening(port: int | None, listen: str | None) -> Listening:
    """Where to listen.

    Raises:
        UsageError: ``listen`` is no address with a port, or there is a port besides.
    """
    if listen is None:
        return Listening(port=PORT if port is None else port)
    if port is not None:
        raise UsageError("--listen has a port of its own: leave --port out")
    try:
        parts = urlsplit(f"//{listen}")
        host, chosen = parts.hostname, parts.port
    except ValueError:
        host, chosen = None, None
    if not host or chosen is None or parts.netloc != listen or "@" in listen:
        raise UsageError(f"--listen {listen} is no ADDRESS:PORT, such as 0.0.0.0:{PORT} or [::]:{PORT}")
    return Listening(host, chosen)


def _find_key(file: Path | None) -> tuple[str, Path | None]:
    if file is None:
        return secrets.token_urlsafe(16), None
    try:
        key = file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise MissingFileError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadFileError(f"{file} holds no key: only ASCII may stand there") from error
    if len(key) < SHORTEST_KEY or not key.isprintable() or " " in key:
        raise BadFileError(f"{file} holds no key: one line of at least {SHORTEST_KEY} characters without spaces")
    return key, file


def _load_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageError("--tls-cert and --tls-key belong together")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise BadFileError(f"{certificate} and {key} are no certificate and its key: {error.reason}") from error
    except OSError as error:
        raise MissingFileError(f"{certificate} or {key} cannot be read: {error.strerror}") from error
    return context


async def _serve(options: BusOptions, serving: Serving, *, open_browser: bool, as_json: bool) -> None:
    from services._runtime.command.connection import connected  # noqa: PLC0415 - quick --help
    from services.console.access import Access  # noqa: PLC0415 - as above
    from services.console.hub import Hub  # noqa: PLC0415 - as above
    from services.console.messages import console_message  # noqa: PLC0415 - as above
    from services.console.source import follow_bus  # noqa: PLC0415 - as above
    from services.console.web import Content, WebServer, load_files  # noqa: PLC0415 - as above

    files = load_files(Path(__file__).parent / "static")
    if "/" not in files:
        raise CommandError("the page was not built: run scripts/build_console.sh")
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    hub = Hub()
    own_version = version("turnbuckle")  # read from a file: too slow for every heartbeat
    async with connected(options) as bus:

        def heartbeat() -> bytes:
            return console_message(
                "Beat", connected=bus.connected, server=options.address, root=bus.root, version=own_version
            )

        async with follow_bus(bus, hub) as source:
            web = WebServer(Content(files, hub, heartbeat, source.queries), Access(serving.key))
            try:
                address = serving.address(await _listen(web, serving))
                _announce(address, options, as_json=as_json)
                gc.collect()
                gc.freeze()  # modules stay until the end: each full collection would look through them again
                if open_browser:
                    typer.launch(address)
                await stop.wait()
            finally:
                await web.stop()


async def _listen(web: WebServer, serving: Serving) -> int:
    reason = ""
    ports = serving.ports or (serving.listening.port,)
    for port in ports:
        try:
            return await web.start(replace(serving.listening, port=port))
        except OSError as error:
            reason = error.strerror or str(error)
    option = "--port" if serving.listening.host == HOST else "--listen"
    raise UnavailableError(
        f"port {ports[0]} of {serving.listening.host} cannot be used ({reason}); choose another with {option}"
    )


def _announce(address: str, options: BusOptions, *, as_json: bool) -> None:
    if as_json:
        print_json({"url": address, "nats": options.address}, indent=None)
        return
    print_line(address)
    print_note(f"shows the bus at {options.address}; Ctrl-C ends it")
