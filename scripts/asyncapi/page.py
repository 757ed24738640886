"""docs/asyncapi.html, the page that shows docs/asyncapi.json: one file, opened from disk, without a network.

What draws it is built by ``scripts/asyncapi/build_page.sh`` from docs/asyncapi-page. The document in it is exchanged
without node, by ``make docs``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from scripts.asyncapi import document
from scripts.console_digest import digest

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGE: Final = DOCS / "asyncapi.html"
SOURCES: Final = DOCS / "asyncapi-page"
_BEGIN: Final = '<script type="application/json" id="document">\n'
_END: Final = "</script>"


def page() -> str:
    """The page with the document as the code would write it now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{_embedded()}{_END}{after}"


def shown(text: str) -> str:
    """The document within the page, as JSON."""
    return text.partition(_BEGIN)[2].partition(_END)[0]


def assembled(built: Path) -> str:
    """The page out of its template and what the bundler has made of the sources."""
    style = built.parent / "node_modules/@asyncapi/react-component/styles/default.min.css"
    parts = {
        "sources": digest(SOURCES),
        "style": style.read_text(encoding="utf-8"),
        "document": _embedded(),
        "script": (built / "page.js").read_text(encoding="utf-8"),
        "licences": (built / "licences.md").read_text(encoding="utf-8"),
    }
    # What lies in a script element ends with the first end tag: none may be in it, as there is no way to escape one.
    if any(_END in parts[name].lower() for name in ("document", "script", "licences")) or "</" in parts["style"]:
        raise ValueError("a part of the page would end its element")
    text = (SOURCES / "page.html").read_text(encoding="utf-8")
    first, *rest = text.split("{{")
    pieces = [first]
    for piece in rest:
        name, _, after = piece.partition("}}")
        pieces += [parts[name], after]
    return "".join(pieces)


def _embedded() -> str:
    return document.text().replace("<", "\\u003c")


def main() -> None:
    """Write the page from the folder that the bundler has written to."""
    PAGE.write_text(assembled(Path(sys.argv[1])), encoding="utf-8")


if __name__ == "__main__":
    main()
