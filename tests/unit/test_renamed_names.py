"""The table of renamed names in the CHANGELOG: complete where a list exists, and no old name is left in the tree."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from schemas.telemetry import ATTRIBUTES, METRICS
from scripts.generate_docs import settings_classes

ROOT = Path(__file__).parents[2]
SEARCHED = ("services", "schemas", "scripts", "compose", "docs", "README.md")


def table() -> dict[tuple[str, str], str]:
    """New name by kind and old name."""
    text = (ROOT / "CHANGELOG.md").read_text().partition("\n### Renamed\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (.+?) \| `([^`]+)` \| `([^`]+)` \|$", text, re.MULTILINE)
    return {(kind, old): new for kind, old, new in rows}


TABLE = table()


def of(kind: str) -> dict[str, str]:
    return {old: new for (found, old), new in TABLE.items() if found == kind}


def test_every_renamed_variable_is_listed_and_no_other() -> None:
    renamed = {
        settings.variable(old): settings.variable(new)
        for settings in settings_classes()
        for old, new in settings.renamed.items()
    }

    assert of("variable") == renamed


def test_new_metrics_and_attributes_exist_and_old_ones_do_not() -> None:
    for kind, declared in (("metric", METRICS), ("span attribute", ATTRIBUTES)):
        assert of(kind)
        assert set(of(kind).values()) <= set(declared)
        assert not set(of(kind)) & set(declared)


@pytest.mark.parametrize("kind", ["metric", "variable"])
def test_no_old_name_is_left_in_the_tree(kind: str) -> None:
    pattern = r"\b(" + "|".join(of(kind)) + r")\b"
    found = subprocess.run(
        ["git", "grep", "--untracked", "-nIE", pattern, "--", *SEARCHED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.returncode == 1, found.stdout + found.stderr


def test_new_log_events_are_logged_and_old_ones_are_not() -> None:
    sources = "\n".join(path.read_text() for path in sorted((ROOT / "services").rglob("*.py")))

    assert of("log event")
    assert [new for new in of("log event").values() if f'"{new}"' not in sources] == []
    assert [
        old for old in of("log event") if re.search(rf'\.(info|warning|error|debug)[\w.,\s]*[(,]\s*"{old}"', sources)
    ] == []
