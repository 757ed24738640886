"""No subject is built outside schemas/subjects.py: read from the syntax trees of all services.

What counts as building one: text without white space (so help texts and log sentences may name a subject) that has a
kind token after something else (``{root}.obs.x``, ``tb.cmd.``), an f-string that starts with a kind (an id in it
would not be escaped), or a direct call of ``Subject`` or ``SubjectTemplate``. Only the buses in services/_runtime may
call ``Subject``: they wrap the text of a subject that a message came on. A plain ``"obs.>"`` is a pattern such as
users type: `schemas.subjects.wildcard` puts it below the root.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVICES = Path(__file__).resolve().parents[3] / "services"
BELOW_A_ROOT = re.compile(r"\.(obs|evt|cmd)(\.|$)|^tb\.")
CONSTRUCTORS = frozenset({"Subject", "SubjectTemplate"})
STARTS_WITH_KIND = re.compile(r"^(obs|evt|cmd)\.")


def built_subjects(source: str, constructors: frozenset[str] = CONSTRUCTORS) -> list[tuple[int, str]]:
    """Line and text of every place in ``source`` that builds a subject."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called_name(node) in constructors]
    return [(node.lineno, text) for node, text in [*_suspects(tree, prose), *((c, ast.unparse(c)) for c in calls)]]


def _suspects(node: ast.AST, prose: set[int]) -> Iterator[tuple[ast.expr, str]]:
    if isinstance(node, ast.JoinedStr):
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        if _is_subject(text) or (STARTS_WITH_KIND.search(text) and not re.search(r"\s", text)):
            yield node, text
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if id(node) not in prose and _is_subject(node.value):
            yield node, node.value
        return
    for child in ast.iter_child_nodes(node):
        yield from _suspects(child, prose)


def _is_subject(text: str) -> bool:
    return bool(BELOW_A_ROOT.search(text)) and not re.search(r"\s", text)


def _called_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def test_no_service_builds_a_subject() -> None:
    files = sorted(SERVICES.rglob("*.py"))

    assert len(files) > 5
    found = []
    for path in files:
        constructors = CONSTRUCTORS - {"Subject"} if "_runtime" in path.parts else CONSTRUCTORS
        built = built_subjects(path.read_text(), constructors)
        found += [f"{path.relative_to(SERVICES)}:{line}: {text}" for line, text in built]
    assert not found, "use a SubjectTemplate of schemas/subjects.py\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        'f"{root}.obs.cfs.{app}.{node}"',
        'f"tb.obs.limits.{app}"',
        '"tb.evt.container.shop.n1"',
        'root + ".cmd.limits." + node',
        '"{}.evt.oom.{}".format(root, app)',
        'f"cmd.limits.{node}"',
        'publish(f"{self.root}.evt")',
        "Subject(text)",
        'subjects.SubjectTemplate("x.y")',
    ],
)
def test_the_rule_sees_a_built_subject(line: str) -> None:
    assert built_subjects(f"x = {line}")


@pytest.mark.parametrize(
    "line",
    [
        'CFS.subject(root, app="a", node="n")',
        'wildcard(root, "obs.>")',
        'help = "a subject such as tb.obs.> or evt.*"',
        '"""A docstring names tb.obs.cfs.{app}."""',
        'log.info("subscribed", pattern=str(pattern))',
        'parts = ".".join(loc)',
        'name = "/usr/lib/observer.evtx"',
    ],
)
def test_the_rule_leaves_the_rest_alone(line: str) -> None:
    assert built_subjects(line) == []
