#!/usr/bin/env python3
"""Print what pyproject.toml asks for, a requirement a line: ``requirements.py``, or of extras ``EXTRA[?],...``."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

COMMAND = "cli"
"""The extra of the `turnbuckle` command: an installation by pip has most of it, a service's image has none."""


def main() -> None:
    """Without an argument: what all services need. ``build-system`` counts as an extra; an unknown one is an error.

    Not so where a question mark follows it: most services need no packages of their own.
    """
    content = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    project = content["project"]
    if len(sys.argv) == 1:
        found = of_services(project)
    else:
        extras = project["optional-dependencies"] | {"build-system": content["build-system"]["requires"]}
        named = sys.argv[1].split(",")
        wanted = [extra.rstrip("?") for extra in named if not extra.endswith("?") or extra.rstrip("?") in extras]
        if unknown := [extra for extra in wanted if extra not in extras]:
            sys.exit(f"pyproject.toml has no extra {', '.join(unknown)}; it has {', '.join(extras)}")
        found = [requirement for extra in wanted for requirement in extras[extra]]
    sys.stdout.writelines(f"{requirement}\n" for requirement in found)


def of_services(project: dict[str, Any]) -> list[str]:
    """The dependencies without those of the command."""
    command = {_name(requirement) for requirement in project["optional-dependencies"][COMMAND]}
    return [requirement for requirement in project["dependencies"] if _name(requirement) not in command]


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()


if __name__ == "__main__":
    main()
