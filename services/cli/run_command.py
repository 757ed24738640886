"""`turnbuckle run SERVICE`: a service in place of this process, with an isolated import path.

The installed command does not come here for a service that it finds (`services._runtime.service.entry`): this is for
help, completion and ``python -m services.cli``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import typer

from services._runtime.command.errors import UnavailableError
from services._runtime.command.passthrough import PassthroughCommand
from services._runtime.service.interpreter import InstalledService, become, installed_services

EXAMPLES: Final = """
Examples:

  NATS_URL=nats://bus.example:4222 turnbuckle run agent

  turnbuckle run allocator --print-config

  turnbuckle run agent --help
"""

app = typer.Typer(
    help="Run a service: its settings are environment variables, its log goes to stderr, SIGTERM ends it.",
    epilog=EXAMPLES,
    no_args_is_help=True,
)


def _starter(service: InstalledService) -> Callable[[typer.Context], None]:
    def start(ctx: typer.Context) -> None:
        try:
            become(service, ctx.args)
        except OSError as error:
            raise UnavailableError(f"{service.name} cannot be started: {error.strerror}") from error

    return start


for _service in installed_services().values():
    app.command(_service.name, cls=PassthroughCommand, help=_service.summary)(_starter(_service))
