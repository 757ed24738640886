"""CLI errors: they end a command with a message for the user and an exit code, never a traceback."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the command; sysexits.h where it has a name for the case."""

    FAILED = 1
    USAGE = 2
    NO_INPUT = 66
    """EX_NOINPUT: a file that the command line names does not exist."""
    UNAVAILABLE = 69
    """EX_UNAVAILABLE: NATS, the allocator or the Docker Engine does not answer."""
    INTERNAL = 70
    """EX_SOFTWARE: a service died."""
    NO_PERMISSION = 77
    """EX_NOPERM: NATS refuses the key, or the key's user may not do this."""
    BAD_CONFIG = 78
    """EX_CONFIG: a file or a setting is wrong, or the settings and the server do not agree about TLS."""


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
