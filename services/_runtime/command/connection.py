"""How commands reach NATS: ``--server``, ``--context``, ``NATS_URL``, the selected NATS context, or 127.0.0.1:4222."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Annotated, Any, ClassVar, Final, TypeVar

import typer

from schemas.message import Message
from schemas.permissions import Identity, allowed, grants
from schemas.roles import Role
from services._runtime.bus.api import (
    BusError,
    BusSettingsError,
    CredentialsRefusedError,
    NoResponderError,
    NotPermittedError,
    RequestRefusedError,
    RequestTimeoutError,
)
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services._runtime.command.errors import BadFileError, CommandError, NoPermissionError, UnavailableError
from services._runtime.service.settings import PREFIX, CommonSettings
from services._runtime.settings_error import SettingsError
from services._runtime.telemetry.logging import setup_logging

CONNECT_TIMEOUT_S: Final = 3.0
QUERY_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 2.0

ServerOption = Annotated[
    str | None,
    typer.Option("--server", "-s", metavar="URL", help="NATS server; default: NATS_URL, a context, or 127.0.0.1:4222."),
]
ContextOption = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="NATS context, as `nats context ls` lists them."),
]

ReplyT = TypeVar("ReplyT", bound=Message)


class CliSettings(CommonSettings):
    """The command's settings: those that every service has."""

    service: ClassVar[str] = "cli"
    ignored: ClassVar[frozenset[str]] = frozenset(
        f"{PREFIX}{name}"
        for name in (
            "AGENT_OOM_SCORE",
            "BASE",
            "BRIDGE_ADDRESS",
            "BUILD_BASE",
            "FRR_DIRECTORY",
            "JOBS_DIRECTORY",
            "NATS_IMAGE",
            "NATS_PORT",
            "NODE",
            "RECONCILER_HEALTH_PORT",
            "STATE_DIRECTORY",
            "VERSION",
        )
    )
    """Of the compose files: set in the shell in which an operator starts both."""


def find_server(server: str | None, context: str | None) -> BusOptions:
    """Where NATS is: the options given, else settings, else what the ``nats`` command would use.

    Raises:
        BadFileError: a setting or the context cannot be used; the message names it.
    """
    given: dict[str, Any] = {}
    if server or context:
        given["nats_url"] = server  # a context given by hand beats a URL in the environment
    if context:
        given["nats_context"] = context
    try:
        options = CliSettings.load(**given).bus_options()
    except SettingsError as error:
        raise BadFileError(str(error)) from error
    return dataclasses.replace(options, origin="--server") if server else options


class _NullStream(io.StringIO):
    """A stream that discards its text."""

    def write(self, text: str, /) -> int:
        """Discard the text."""
        return len(text)


def quiet_logs() -> None:
    """Logs are for services; a command says what went wrong itself. TURNBUCKLE_LOG_LEVEL=debug shows them."""
    shown = os.environ.get("TURNBUCKLE_LOG_LEVEL") == "debug"
    setup_logging(
        "cli", level="debug" if shown else "error", log_format="console", stream=None if shown else _NullStream()
    )


@asynccontextmanager
async def connected(options: BusOptions, *, within_s: float | None = None) -> AsyncIterator[NatsBus]:
    """A bus for one command. Its errors within the block become command errors.

    ``within_s``: how long a server is waited for, by default `CONNECT_TIMEOUT_S`.

    Raises:
        UnavailableError: no server answers, or it stopped answering.
        BadFileError: the options cannot be used, or do not fit the server.
        NoPermissionError: the server does not know the key, or does not let its user do this.
    """
    quiet_logs()
    command_options = dataclasses.replace(
        options, name="turnbuckle-cli", connect_deadline_s=within_s or CONNECT_TIMEOUT_S
    )
    try:
        bus = await NatsBus.connect(command_options)
    except BusError as error:
        raise command_error(error, command_options) from error
    try:
        yield bus
    except BusError as error:
        raise command_error(error, command_options) from error
    finally:
        await bus.close(CLOSE_TIMEOUT_S)


def command_error(error: BusError, options: BusOptions) -> CommandError:
    """The command error for a bus error."""
    if isinstance(error, BusSettingsError):
        return BadFileError(str(error))
    if isinstance(error, CredentialsRefusedError):
        return NoPermissionError(str(error))
    if isinstance(error, NotPermittedError):
        return NoPermissionError(_not_permitted(error, options))
    return UnavailableError(str(error))


def _not_permitted(error: NotPermittedError, options: BusOptions) -> str:
    if not error.subject:
        return str(error)
    observer_may = allowed(grants(Identity(Role.OBSERVER), options.root).publish, error.subject)
    return missing_key_text(options, "an operator's or observer's" if observer_may else "the operator's")


def missing_key_text(options: BusOptions, whose: str) -> str:
    """Which user's key is needed, and which was used."""
    file = options.nkey_seed_file
    used = f"and that in {file} is not" if file else "and none is set"
    return (
        f"this needs {whose} key, {used}: set TURNBUCKLE_NATS_NKEY_SEED_FILE to one that"
        f" `turnbuckle nats config --root {options.root}` has written to secrets"
    )


async def await_reply(
    service: str,
    pending: Awaitable[Message],
    reply_type: type[ReplyT],
    *,
    starts: str = "",
    within_s: float = QUERY_TIMEOUT_S,
) -> ReplyT:
    """The reply to a request, its errors as command errors.

    Args:
        service: that is asked.
        pending: the request.
        reply_type: of the reply that is expected.
        starts: what starts the service; by default `turnbuckle run`.
        within_s: the request's deadline.

    Raises:
        UnavailableError: no reply.
        CommandError: the service rejects the request (an unknown application, say).
    """
    try:
        reply = await pending
    except NoResponderError as error:
        raise UnavailableError(f"no {service} answers: {starts or f'`turnbuckle run {service}` starts one'}") from error
    except RequestTimeoutError as error:
        raise UnavailableError(f"the {service} did not answer within {within_s:g} s") from error
    except RequestRefusedError as error:
        raise CommandError(str(error)) from error
    if not isinstance(reply, reply_type):
        raise CommandError(f"the {service} answered with {reply.type_name}: are the versions the same?")
    return reply
