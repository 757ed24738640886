"""Preflight problems, each with its remedy, and the error that carries them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from services._runtime.command.errors import CommandError
from services._runtime.exit_code import ExitCode


@dataclass(frozen=True, slots=True)
class PreflightProblem:
    """One problem."""

    what: str
    remedy: str
    in_file: bool = False
    """The file is wrong, not the host."""


class PreflightError(CommandError):
    """The file does not suit the host. Nothing has been changed."""

    def __init__(self, problems: Iterable[PreflightProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{problem.what}: {problem.remedy}" for problem in self.problems))
        in_file = all(problem.in_file for problem in self.problems)
        self.exit_code = ExitCode.BAD_CONFIG if in_file else ExitCode.UNAVAILABLE
