"""The operations guide: every alert has its line; and what any page names, settings, metrics, commands, exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from schemas.streams import JOB_STREAM, RUN_STREAM
from schemas.telemetry import METRICS
from scripts.generate_docs import settings_classes
from services.cli.main import app

GROUP: Any = typer.main.get_command(app)
COMMANDS: Any = {name: GROUP.load(name) for name in GROUP.commands}
NO_METRICS = {"turnbuckle_job"}
"""A label of cloud jobs."""
ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/runbooks").glob("*.md"),
        *(ROOT / "services").glob("*/README.md"),
        *(ROOT / "compose").rglob("README.md"),
    ]
)
OLD_NAMES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n### Renamed\n")[2].partition("\n### ")[0]
"""The one place that names what there was."""
GUIDE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def test_every_alert_has_a_runbook_that_says_where_to_look_and_what_to_do() -> None:
    groups = yaml.safe_load((ROOT / "compose/observability/alerts.yaml").read_text())["groups"]
    runbooks = {rule["alert"]: rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]}

    listed = dict(re.findall(r"^\| \[(Turnbuckle\w+)\]\((runbooks/\w+\.md)\) \| [^|]+ \|$", GUIDE, flags=re.MULTILINE))

    assert {name: f"docs/{page}" for name, page in listed.items()} == runbooks
    assert {path.name for path in (ROOT / "docs/runbooks").iterdir()} == {f"{name}.md" for name in runbooks}
    for name, page in runbooks.items():
        title, *sections = re.split(r"^#+ ", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        assert title.startswith(f"{name}\n")
        assert [section.partition("\n")[0] for section in sections] == ["Impact", "Diagnosis", "Mitigation"]
        assert all(section.partition("\n")[2].strip() for section in sections)


def is_command(words: str) -> bool:
    first, *rest = words.split()
    inner = getattr(COMMANDS.get(first), "commands", {})
    return first in COMMANDS and (not inner or not rest or rest[0] in inner)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace(OLD_NAMES, "")
    found = [info for settings in settings_classes() for info in settings.describe()]
    known = {info.variable for info in found} | {f"{info.variable}_FILE" for info in found if info.secret}
    assert set(re.findall(r"\bTURNBUCKLE_[A-Z]+(?:_[A-Z]+)*__[A-Z_]*[A-Z]", text)) <= known
    metrics = set(re.findall(r"\bturnbuckle_[a-z0-9_]+?(?=_bucket\b|\b)", text)) - NO_METRICS
    containers = {name for name in metrics if re.fullmatch(r"turnbuckle_[a-z]+_\d+", name)}  # of Compose, version 1
    assert metrics - containers <= METRICS.keys()
    typed = re.findall(r"(?:^|`|\(|&& )turnbuckle (?!is up:)((?:[a-z]+ )*[a-z]+)", text, flags=re.MULTILINE)
    assert [words for words in typed if not is_command(words)] == []


def test_the_streams_that_are_backed_up_exist() -> None:
    assert set(re.findall(r"nats stream backup (TB_\w+)", GUIDE)) == {
        JOB_STREAM.stream_name("tb"),
        RUN_STREAM.stream_name("tb"),
    }
