"""CLI errors: they end a command with a message for the user and an exit code, never a traceback."""

from __future__ import annotations

from services._runtime.exit_code import ExitCode


class CommandError(Exception):
    """Ends the command. The message says what is wrong and what to do about it."""

    exit_code: int = ExitCode.FAILED


class UsageError(CommandError):
    """The command line is wrong."""

    exit_code: int = ExitCode.USAGE


class UnavailableError(CommandError):
    """Something that the command talks to does not answer."""

    exit_code: int = ExitCode.UNAVAILABLE


class NoPermissionError(CommandError):
    """The key is of no use for this."""

    exit_code: int = ExitCode.NO_PERMISSION


class BadFileError(CommandError):
    """A file or a setting is wrong."""

    exit_code: int = ExitCode.BAD_CONFIG


class MissingFileError(BadFileError):
    """A file that the command line names does not exist."""

    exit_code: int = ExitCode.NO_INPUT


class ServiceDiedError(CommandError):
    """A service that `turnbuckle up` had started has ended by itself."""

    exit_code: int = ExitCode.INTERNAL
