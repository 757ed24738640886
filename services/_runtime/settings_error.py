"""The error of settings that cannot be used; raised by every reader of environment variables."""

from __future__ import annotations


class SettingsError(ValueError):
    """The environment cannot be used; the text has one line per mistake."""

    def __init__(self, service: str, problems: list[str]) -> None:
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"the settings of {service} cannot be used:{lines}")
        self.problems = problems
