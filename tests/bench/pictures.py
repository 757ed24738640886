"""Pictures without a display."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

_LETTERS_PER_INCH: Final = 14
"""Of 8 points."""


def panels(count: int, size: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """A figure and its axes side by side, one without a list around it."""
    return plt.subplots(1, count, figsize=size, **options)


def save(figure: Any, caption: str, path: Path, caption_size: int = 8) -> Path:
    """Write a figure with its caption, and let go of it; returns the path."""
    columns = int(figure.get_figwidth() * _LETTERS_PER_INCH * 8 / caption_size)
    wrapped = "\n".join(textwrap.fill(line, columns) for line in caption.splitlines())
    figure.suptitle(wrapped, fontsize=caption_size)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
