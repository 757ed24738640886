"""The errors of settings that cannot be used."""

from __future__ import annotations


class SettingsError(ValueError):
    """The environment cannot be used; the text has one line per mistake."""

    def __init__(self, service: str, problems: list[str]) -> None:
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"the settings of {service} cannot be used:{lines}")
        self.problems = problems


class UnusableSettingsError(Exception):
    """Raised by `Service.start`: the settings do not fit this machine; the text names a remedy. Exit code 78."""
