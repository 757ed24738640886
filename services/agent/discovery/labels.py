"""Labels that name a container's application; the same on Docker containers and on pods."""

from __future__ import annotations

import re
from typing import Final

from schemas.apps import NAME_PATTERN

APP_LABEL: Final = "turnbuckle.app"
NAME_LABEL: Final = "turnbuckle.name"
_SHOWN_LENGTH: Final = 200
_NAME: Final = re.compile(NAME_PATTERN)


def refuse_names(app: str, name: str) -> str | None:
    """Why an application's or a container's name cannot be used, or None."""
    if not _NAME.fullmatch(app):
        return f"label {APP_LABEL}={app[:_SHOWN_LENGTH]!r} does not match {NAME_PATTERN}"
    if not _NAME.fullmatch(name):
        return (
            f"name {name[:_SHOWN_LENGTH]!r} does not match {NAME_PATTERN}: "
            f"set the label {NAME_LABEL}, or another container name"
        )
    return None
