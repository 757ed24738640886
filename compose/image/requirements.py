#!/usr/bin/env python3
"""Print what pyproject.toml asks for, a requirement a line: ``requirements.py``, or of extras ``EXTRA[,EXTRA...]``."""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Without an argument: what all services need. ``build-system`` counts as an extra; an unknown one is an error."""
    content = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    project = content["project"]
    if len(sys.argv) == 1:
        found = project["dependencies"]
    else:
        extras = project["optional-dependencies"] | {"build-system": content["build-system"]["requires"]}
        wanted = sys.argv[1].split(",")
        if unknown := [extra for extra in wanted if extra not in extras]:
            sys.exit(f"pyproject.toml has no extra {', '.join(unknown)}; it has {', '.join(extras)}")
        found = [requirement for extra in wanted for requirement in extras[extra]]
    sys.stdout.writelines(f"{requirement}\n" for requirement in found)


if __name__ == "__main__":
    main()
