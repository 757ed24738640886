"""Every link from one page of ours to another leads somewhere, to the heading that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_BESIDE_TEXT = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def pages() -> list[Path]:
    """All of them but what was installed or built."""
    folders = ("docs", "services", "compose", "kernel", "scripts", "tests")
    found = [page for folder in folders for page in (ROOT / folder).rglob("*.md") if "node_modules" not in page.parts]
    return sorted([*ROOT.glob("*.md"), *found])


def anchors(page: Path) -> set[str]:
    """Names of a page's headings, made as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ +(.+?)\s*$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = _BESIDE_TEXT.sub("", page.read_text(encoding="utf-8"))
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link
