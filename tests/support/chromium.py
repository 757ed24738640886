"""A headless Chromium of the system, driven by Playwright, for tests of the web console."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str:
    """Its path. Where it is missing the test is skipped with the reason."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    try:
        import playwright  # noqa: F401, PLC0415 - only where such a test was collected
    except ImportError:
        pytest.skip("needs Playwright: pip install playwright (its browsers are not needed)")
    if path is None:
        pytest.skip("needs a browser: apt-get install chromium")
    return path


@asynccontextmanager
async def browser() -> AsyncIterator[Any]:
    """A Playwright `Browser`; gone at the end."""
    path = find_chromium()
    from playwright.async_api import async_playwright  # noqa: PLC0415 - as above

    async with async_playwright() as playwright:
        # Root has no sandbox; the pages are our own.
        opened = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=120_000)
        try:
            yield opened
        finally:
            await opened.close()
