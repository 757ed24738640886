"""Validation errors as text."""

from __future__ import annotations

from pydantic import ValidationError


def error_lines(error: ValidationError) -> list[str]:
    """One line per error: ``workers.0: Input should be greater than or equal to 1``."""
    return [f"{'.'.join(map(str, it['loc'])) or 'the file'}: {it['msg']}" for it in error.errors(include_url=False)]
