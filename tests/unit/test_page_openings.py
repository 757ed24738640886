"""A page of docs begins with what its reader wants to do there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (
    "advisor",
    "architecture",
    "autoscalers",
    "benchmarks",
    "compose",
    "dataset",
    "design-critique",
    "edge",
    "events",
    "glossary",
    "how-it-works",
    "install",
    "interleaving",
    "known-limitations",
    "kubernetes",
    "newcomer",
    "operations",
    "planner",
    "runtimes",
    "savings",
    "scheduler",
    "security",
    "tracing",
    "trainer",
)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_begins_with_what_its_reader_wants(name: str) -> None:
    title, first = (DOCS / f"{name}.md").read_text(encoding="utf-8").split("\n\n")[:2]

    assert title.startswith("# ")
    assert re.match(r"You (want|run)\b|## I want\b", first)
