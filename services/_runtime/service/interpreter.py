"""Starts Turnbuckle's modules in an interpreter that ignores the current directory and PYTHONPATH.

``python -m`` searches the current directory first, and PYTHONPATH before installed packages: a ``services`` package or
a ``yaml.py`` there would decide what root runs.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import services

_COMMAND: Final = "cli"
"""Has a ``__main__`` but is no service."""
_PROGRAMS: Final = {"services.trainer.worker": "trainer-worker"}
"""Run by `turnbuckle run`, but no services: another program starts them (torchrun), and they have no settings."""


def isolated_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module in isolation; the environment is unchanged, for the user's programs.

    ``-E`` ignores PYTHONPATH (and every other PYTHON* variable), ``-P`` the current directory, unless that is the
    checkout that this package was imported from: it need not be installed.
    """
    path = [] if _starts_in(_import_root()) else ["-P"]
    return [sys.executable, "-E", *path, *_kept_flags(), "-m", module, *arguments]


@dataclass(frozen=True, slots=True)
class InstalledService:
    """A service that is installed."""

    name: str
    module: str
    """Its package."""
    summary: str
    """Its purpose in one line."""


def installed_services() -> dict[str, InstalledService]:
    """All installed services by name; found by their files, without imports. An image has one service only."""
    return {service.name: service for service in _installed() if service.module not in _PROGRAMS}


def installed_programs() -> dict[str, InstalledService]:
    """All that `turnbuckle run` starts, by name: services, and programs that other launchers start."""
    return {service.name: service for service in _installed()}


def become(service: InstalledService, arguments: Sequence[str]) -> NoReturn:
    """Run a service as this process: its pid, signals, descriptors and exit code are the service's.

    Raises:
        OSError: the interpreter cannot be started.
    """
    os.execv(sys.executable, isolated_command(service.module, *arguments))  # noqa: S606 - our own module


def _installed() -> Iterator[InstalledService]:
    root = _import_root()
    for start in sorted(root.glob("services/*/__main__.py")) + sorted(root.glob("services/*/*/__main__.py")):
        package = start.parent
        if package.name != _COMMAND:
            module = ".".join(package.relative_to(root).parts)
            name = _PROGRAMS.get(module, package.name)
            yield InstalledService(name, module, _summary(package / "__init__.py"))


def _starts_in(directory: Path) -> bool:
    try:
        return directory == Path.cwd()
    except FileNotFoundError:  # it was removed
        return False


def _import_root() -> Path:
    return Path(next(iter(services.__path__))).parent


def _kept_flags() -> list[str]:
    """Flags for the variables that ``-E`` ignores and images set: no bytecode files, unbuffered output."""
    unbuffered = ["-u"] if os.environ.get("PYTHONUNBUFFERED") else []
    return unbuffered + (["-B"] if sys.flags.dont_write_bytecode else [])


def _summary(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
