"""Exit codes of every command and service, and an error as programs read it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

JSON_OPTION: Final = "--json"


class ExitCode(IntEnum):
    """Exit codes of commands, services and tools; sysexits.h where it has a name for the case."""

    OK = 0
    FAILED = 1
    USAGE = 2
    BAD_DATA = 65
    """EX_DATAERR: a row, a module or a price list was refused."""
    NO_INPUT = 66
    """EX_NOINPUT: a file that the command line names does not exist."""
    UNAVAILABLE = 69
    """EX_UNAVAILABLE: NATS, the allocator or the Docker Engine does not answer."""
    INTERNAL = 70
    """EX_SOFTWARE: a service died."""
    RESUMABLE = 75
    """EX_TEMPFAIL: another process of a training job failed; started again, the job goes on at its last checkpoint."""
    NO_PERMISSION = 77
    """EX_NOPERM: NATS refuses the key, or the key's user may not do this."""
    BAD_CONFIG = 78
    """EX_CONFIG: a file or a setting is wrong, or the settings and the server do not agree about TLS."""
    NOT_EXECUTABLE = 126
    """As a shell's: `exec` may not execute the command."""
    NOT_FOUND = 127
    """As a shell's: the command of `exec` does not exist."""
    INTERRUPTED = 130
    """As a shell's: ended by SIGINT."""


def typed_json(words: Sequence[str]) -> bool:
    """Whether a command line asks for JSON; what follows a ``--`` is another program's."""
    words = list(words)
    return JSON_OPTION in (words[: words.index("--")] if "--" in words else words)


def plain_error(message: str, exit_code: int) -> dict[str, Any]:
    """An error as programs read it. `kind`: the exit code's name in lower case, ``failed`` where it has none."""
    kind = ExitCode(exit_code) if exit_code in set(ExitCode) else ExitCode.FAILED
    return {"message": message, "exit_code": exit_code, "kind": kind.name.lower()}


def json_error(message: str, exit_code: int) -> str:
    """The line on standard error with which a command ends that was asked for JSON."""
    return json.dumps({"error": plain_error(message, exit_code)}) + "\n"
