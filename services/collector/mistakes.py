"""What is wrong in a file of ours, each mistake with its place."""

from __future__ import annotations

from pydantic import ValidationError


def mistakes(error: ValidationError) -> list[str]:
    """One line per mistake: ``workers.0: Input should be greater than or equal to 1``."""
    return [f"{'.'.join(map(str, it['loc'])) or 'the file'}: {it['msg']}" for it in error.errors(include_url=False)]
