"""Modules of ours in an interpreter of their own, and whatever directory it is started in.

``python -m`` searches the current directory first, and PYTHONPATH before what is installed: a directory with a
``services`` or a ``yaml.py`` of its own would decide what root runs. What is started here takes neither.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import services

_COMMAND: Final = "cli"
"""Starts services, and is none."""


def isolated_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of ours; the environment goes on unchanged, for programs of the user's.

    ``-E`` ignores PYTHONPATH (and every other PYTHON* variable), ``-P`` the current directory. Where that is the
    checkout that we were imported from, it stays: it need not be installed.
    """
    path = [] if _starts_in(_import_root()) else ["-P"]
    return [sys.executable, "-E", *path, *_kept_flags(), "-m", module, *arguments]


@dataclass(frozen=True, slots=True)
class InstalledService:
    """A service that can be run here."""

    name: str
    module: str
    """What is run."""
    summary: str
    """A line that says what it is for."""


def installed_services() -> dict[str, InstalledService]:
    """All packages that can be run, by name; read from files, imports nothing. An image holds one service only."""
    root = _import_root()
    found = {}
    for start in sorted(root.glob("services/*/__main__.py")) + sorted(root.glob("services/*/*/__main__.py")):
        package = start.parent
        if package.name != _COMMAND:
            module = ".".join(package.relative_to(root).parts)
            found[package.name] = InstalledService(package.name, module, _summary(package / "__init__.py"))
    return found


def become(service: InstalledService, arguments: Sequence[str]) -> NoReturn:
    """Run a service as this process: its pid, signals, descriptors and exit code are the service's.

    Raises:
        OSError: the interpreter cannot be started.
    """
    os.execv(sys.executable, isolated_command(service.module, *arguments))  # noqa: S606 - our own module


def _starts_in(directory: Path) -> bool:
    try:
        return directory == Path.cwd()
    except FileNotFoundError:  # it has been removed under us
        return False


def _import_root() -> Path:
    return Path(next(iter(services.__path__))).parent


def _kept_flags() -> list[str]:
    """What ``-E`` would lose and images set: no compiled files on a read-only root, output that is not held back."""
    unbuffered = ["-u"] if os.environ.get("PYTHONUNBUFFERED") else []
    return unbuffered + (["-B"] if sys.flags.dont_write_bytecode else [])


def _summary(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
