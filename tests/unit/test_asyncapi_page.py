"""The page of all messages shows the document of today, and opens from disk without a network."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from schemas.registry import CHANNELS, ENDPOINTS
from scripts.asyncapi.page import DOCS, PAGE, SOURCES, shown
from scripts.console_digest import digest
from tests.support.chromium import browser

DOCUMENT = json.loads((DOCS / "asyncapi.json").read_text(encoding="utf-8"))
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_may_ask_no_network() -> None:
    assert "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:" in TEXT


def test_the_page_shows_the_committed_document() -> None:
    assert json.loads(shown(TEXT)) == DOCUMENT, "run `make docs` and commit what it wrote"


def test_the_page_was_built_from_the_sources_beside_it() -> None:
    assert f'<meta name="sources" content="{digest(SOURCES)}">' in TEXT, "run scripts/asyncapi/build_page.sh"


def test_the_page_names_the_licences_of_what_it_contains() -> None:
    locked = json.loads((SOURCES / "package-lock.json").read_text(encoding="utf-8"))["packages"]

    for name in ("@asyncapi/react-component", "@asyncapi/parser", "react", "react-dom"):
        assert f"\n## {name} - {locked[f'node_modules/{name}']['version']} (" in TEXT


@pytest.mark.host  # a browser
async def test_every_subject_and_message_is_drawn_without_a_network() -> None:
    wrong: list[str] = []
    asked: list[str] = []
    async with browser() as opened:
        context = await opened.new_context(offline=True, viewport={"width": 1700, "height": 1000})
        tab = await context.new_page()
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        await tab.goto(PAGE.as_uri())
        await tab.wait_for_selector("#messages")
        text: Any = await tab.inner_text("#page")

    assert wrong == []
    assert asked == [PAGE.as_uri()]
    for line in (*CHANNELS, *ENDPOINTS):
        assert f"{{root}}.{line.template.text}" in text
    for name, message in DOCUMENT["components"]["messages"].items():
        assert re.search(rf"#\d+\s*{name}\s+{re.escape(message['summary'])}", text), name
    assert "AllOf" not in text  # messages are shown as one object
    assert "Cumulative reserve of this node for the application" in text  # a field of CfsBatch, without a click
