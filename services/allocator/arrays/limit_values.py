"""Special values of limits, and the steps and margins of memory limits."""

from typing import Final

UNLIMITED = -1
NO_BOUND = 1 << 62
"""No bound; safe beside one value in a sum."""
PAGE_BYTES: Final = 4096
MARGIN_BYTES: Final = 4 << 20
"""No memory limit is closer to usage than this: v2 memory.max below usage kills (measured/escra.md section 3a)."""
RECLAIM_BYTES: Final = 1 << 20
"""Smaller changes of a memory limit are not worth a write."""
