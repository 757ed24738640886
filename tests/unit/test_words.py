"""Names, first lines of docstrings and pages use the field's words (docs/glossary.md), none of a private language."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PRIVATE_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
    whoever nobody somebody anybody ourselves ours
    look looks looked looking glance glances
    hear hears heard unheard tell tells told teller
    wish wishes wished newcomer newcomers stranger strangers namesake namesakes roster attendance punctuality
    tenure tenures bell bells warden lesson lessons judge judges judged verdict verdicts farewell comfort ration needy
    lending restless patience acquainted episode asleep crowded doomed overtaken absurd misplaced trouble unsure doubt
    doubtful likeness beliefs middles worthwhile outlook
    """,
    )
)
"""Replaced by the words of kernel documentation, Kubernetes, NATS, FRR and statistics textbooks."""
PRIVATE_NAMES = frozenset({"moment", "standing", "stock", "ground"})
"""These in identifiers only."""
PRIVATE_PHRASES = re.compile(r"\b(whoever|nobody|somebody|anybody|wish(es|ed)?|other hands)\b", re.IGNORECASE)
"""On pages: a reader searches for the container, host, user or process that is meant, or for `target`, `external`."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "compose").rglob("README.md"))]
STANDARD = re.compile(r"look(s|ed)?[ _]up", re.IGNORECASE)
"""Such a word as part of a standard term."""


def words_of(text: str) -> list[str]:
    """Lower-case words: ``HTTPServer_of`` is ``http``, ``server``, ``of``."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", text)]


def named(node: ast.AST) -> Iterator[str]:
    """What a node of the syntax tree names, and the first line of its docstring."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            yield node.name
        case ast.arg():
            yield node.arg
        case ast.Name(ctx=ast.Store()):
            yield node.id
        case ast.Attribute(ctx=ast.Store()):
            yield node.attr
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield (ast.get_docstring(node) or "").partition("\n")[0]


def private_words(source: str) -> list[str]:
    """Lines of a module with a private word, as ``LINE: WORD in TEXT``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        for text in named(node):
            private = PRIVATE_WORDS | (PRIVATE_NAMES if text.isidentifier() else frozenset())
            words = words_of(STANDARD.sub("", text))
            found += [f"{getattr(node, 'lineno', 1)}: {word} in {text}" for word in words if word in private]
    return found


def modules() -> list[Path]:
    return [path.relative_to(ROOT) for part in ("services", "schemas") for path in sorted((ROOT / part).rglob("*.py"))]


@pytest.mark.parametrize("path", modules(), ids=str)
def test_names_and_first_lines_have_no_private_word(path: Path) -> None:
    in_path = [word for word in words_of(str(path)) if word in PRIVATE_WORDS]

    assert in_path + private_words((ROOT / path).read_text()) == []


def phrases(page: str) -> list[str]:
    """Lines of a page with a private word, as ``LINE: WORD``; code is left out."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", lambda code: "\n" * code[0].count("\n"), page, flags=re.DOTALL)
    lines = enumerate(prose.splitlines(), start=1)
    return [f"{number}: {found[0]}" for number, line in lines for found in PRIVATE_PHRASES.finditer(line)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_have_no_private_word(path: Path) -> None:
    assert phrases(path.read_text(encoding="utf-8")) == []


def test_private_words_of_pages_are_found_outside_of_code() -> None:
    page = "Whoever asks.\n```\nnobody\n```\nSet by `somebody`, written by other hands; wished for."

    assert phrases(page) == ["1: Whoever", "5: other hands", "5: wished"]


@pytest.mark.parametrize(
    "source",
    [
        "class HTTPRoster: pass",
        "def take(wished_us): pass",
        "node.last_heard = 1",
        "stock = 2",
        'def f():\n    """Looks at everything."""',
        '"""Who tells."""',
    ],
)
def test_private_words_are_found(source: str) -> None:
    assert len(private_words(source)) == 1


def test_standard_terms_pass() -> None:
    assert private_words('def look_up(key):\n    """PollResult up a key.\n\n    It looks at all."""') == []
