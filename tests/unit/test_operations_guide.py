"""The operations guide: every alert has its line, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from schemas.streams import JOB_STREAM, RUN_STREAM
from schemas.telemetry import METRICS
from scripts.generate_docs import settings_classes

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "operations.md", ROOT / "docs" / "architecture.md", ROOT / "compose/kubernetes/README.md",
         ROOT / "compose/systemd/README.md"]  # fmt: skip
GUIDE = PAGES[0].read_text(encoding="utf-8")


def test_every_alert_says_where_to_look_and_what_to_do() -> None:
    groups = yaml.safe_load((ROOT / "compose/observability/alerts.yaml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}

    rows = re.findall(r"^\| `(Turnbuckle\w+)` \|([^|]+)\|([^|]+)\|$", GUIDE, flags=re.MULTILINE)

    assert {name for name, _, _ in rows} == alerts
    assert all(look.strip() and remedy.strip() for _, look, remedy in rows)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    known = {info.variable for settings in settings_classes() for info in settings.describe()}
    assert set(re.findall(r"\bTURNBUCKLE_[A-Z]+(?:_[A-Z]+)*__[A-Z_]*[A-Z]", text)) <= known
    assert set(re.findall(r"\bturnbuckle_[a-z0-9_]+", text)) <= METRICS.keys()
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / link).exists(), link


def test_the_streams_that_are_backed_up_exist() -> None:
    assert set(re.findall(r"nats stream backup (TB_\w+)", GUIDE)) == {
        JOB_STREAM.stream_name("tb"), RUN_STREAM.stream_name("tb")
    }  # fmt: skip
