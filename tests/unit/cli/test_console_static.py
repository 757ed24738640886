"""The shipped page: built from the sources beside it, and needing nothing from elsewhere."""

from __future__ import annotations

import re

from scripts.console_digest import CONSOLE, digest
from services.console.web import load_files

STATIC = CONSOLE / "static"
NAMESPACES = {"http://www.w3.org/2000/svg"}


def test_is_as_new_as_its_sources() -> None:
    """If this fails: scripts/build_console.sh."""
    assert (STATIC / "sources.sha256").read_text(encoding="utf-8").strip() == digest()


def test_names_no_other_place() -> None:
    """No font, script, picture or beacon from elsewhere."""
    text = "".join(content.decode() for _, content in load_files(STATIC).values())
    assert set(re.findall(r"https?://[^\s\"'`)]+", text)) <= NAMESPACES


def test_has_no_inline_script_or_style() -> None:
    """The policy forbids them; a browser would show a blank page."""
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", page)


def test_packages_are_locked_by_digest_and_name_no_registry() -> None:
    lock = (CONSOLE / "ui" / "package-lock.json").read_text(encoding="utf-8")
    assert '"resolved"' not in lock
    assert lock.count('"integrity"') >= 4


def test_is_small() -> None:
    assert sum(len(content) for _, content in load_files(STATIC).values()) < 300_000
