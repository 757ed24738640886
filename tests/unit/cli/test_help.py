"""Every command's help: a sentence, an example of itself, a word on each option; and the shells' completion."""

from __future__ import annotations

import re
import sys

import pytest
from typer.testing import CliRunner

from services._runtime.command.lazy import LazyCommand
from services._runtime.command.tool_command import describe
from services._runtime.service.interpreter import installed_services
from services.cli.command_table import COMMANDS
from services.cli.main import app
from services.scheduler.commands import COMMANDS as JOB_COMMANDS
from tests.support.command_walk import ALL, OURS, SERVICES, TOOLS


def test_the_tools_are_among_the_commands() -> None:
    assert TOOLS
    assert ALL.keys() >= TOOLS.keys()


def test_each_service_is_listed_with_a_line() -> None:
    """What they print for --help is their own: `run agent --help` is the agent."""
    shown = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).stdout

    assert ALL.keys() >= SERVICES
    assert all(f"{service.name} " in shown and service.summary in shown for service in installed_services().values())


@pytest.mark.parametrize("typed", OURS)
def test_help_has_a_sentence_an_example_and_a_word_on_each_option(typed: str) -> None:
    shown = CliRunner().invoke(app, [*typed.split(), "--help"], env={"COLUMNS": "200"})

    assert shown.exit_code == 0
    assert f"turnbuckle {typed}" in shown.stdout.partition("Examples:")[2]
    assert (OURS[typed].help or "").strip()
    assert [option.name for option in OURS[typed].params if option.opts[0].startswith("-") and not option.help] == []


@pytest.mark.parametrize("typed", OURS)
def test_a_paragraph_of_help_breaks_where_the_terminal_ends(typed: str) -> None:
    """And not where the source's lines do."""
    shown = CliRunner().invoke(app, [*typed.split(), "--help"], env={"COLUMNS": "2000"}).stdout

    for paragraph in re.split(r"\n\s*\n", OURS[typed].callback.__doc__ or "" if OURS[typed].callback else ""):
        assert " ".join(paragraph.split()) in shown


@pytest.mark.parametrize("typed", TOOLS)
def test_tools_look_like_every_other_command(typed: str) -> None:
    """Usage, a sentence, their own options in a box with a word on each, and examples of themselves."""
    shown = CliRunner().invoke(app, [*typed.split(), "--help"], env={"COLUMNS": "200"})

    assert shown.exit_code == 0
    assert f"Usage: turnbuckle {typed} [OPTIONS]" in shown.stdout
    assert TOOLS[typed].summary in shown.stdout
    assert "─ Options ─" in shown.stdout
    params = describe(TOOLS[typed])["params"]
    assert params
    assert all(flag in shown.stdout for param in params for flag in param["flags"])
    assert [param["name"] for param in params if not param["help"]] == []
    assert TOOLS[typed].examples
    assert all(example.startswith(typed) for example in TOOLS[typed].examples)
    assert all(f"turnbuckle {example}" in shown.stdout for example in TOOLS[typed].examples)


@pytest.mark.parametrize("entry", [*COMMANDS, *JOB_COMMANDS], ids=lambda entry: entry.name)
def test_the_list_says_what_the_command_says(entry: LazyCommand) -> None:
    help_text = (entry.load().help or "").partition("\n\n")[0].replace("\n", " ")
    assert help_text == entry.summary


@pytest.mark.parametrize("typed", ALL)
def test_no_help_sends_its_reader_to_a_thesis(typed: str) -> None:
    texts = [ALL[typed].help or "", ALL[typed].epilog or "", *(param.help or "" for param in ALL[typed].params)]
    if typed in TOOLS:
        texts += [param["help"] for param in describe(TOOLS[typed])["params"]] + [describe(TOOLS[typed])["about"]]

    cited = re.compile(r"thesis|\beq\.|equation|\bTable \d|\bFigure \d", re.IGNORECASE)
    assert [text for text in texts if cited.search(text)] == []


def test_commands_stand_under_headings() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout

    assert len({entry.panel for entry in COMMANDS}) == 4
    assert all(f"─ {entry.panel} ─" in shown for entry in COMMANDS)


@pytest.mark.parametrize("typed", [typed for typed, command in OURS.items() if not hasattr(command, "commands")])
def test_every_command_has_a_form_for_programs(typed: str) -> None:
    assert any("--json" in option.opts for option in OURS[typed].params)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("turnbuckle ex", {"exec", "explain"}),
        ("turnbuckle run a", {"agent", "aggregator", "allocator", "advisor"}),
        ("turnbuckle fabric ", {"plan", "up", "check", "drain", "down"}),
        ("turnbuckle prices ", {"list", "refresh"}),
        ("turnbuckle profile --w", {"--workers"}),
        ("turnbuckle jobs import --d", {"--dry-run"}),
        ("turnbuckle devices --mea", {"--measure"}),
        ("turnbuckle jobs s", {"show", "submit", "simulate"}),
        ("turnbuckle jobs submit --pre", {"--preemption"}),
    ],
)
def test_a_shell_completes(words: str, offered: set[str]) -> None:
    asked = {"_TURNBUCKLE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    shown = CliRunner().invoke(app, [], env=asked, prog_name="turnbuckle")

    assert set(shown.stdout.split()) == offered


def test_a_tool_that_cannot_start_still_has_its_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without DuckDB, say."""
    describe.cache_clear()
    script = "import sys; sys.exit('duckdb is not installed: pip install \".[collector]\"')"
    monkeypatch.setattr(
        "services._runtime.command.tool_shell.isolated_command", lambda *_: [sys.executable, "-c", script]
    )
    shown = CliRunner().invoke(app, ["jobs", "import", "--help"], env={"COLUMNS": "200"})
    describe.cache_clear()

    assert shown.exit_code == 0
    assert 'Its options cannot be shown here: duckdb is not installed: pip install ".[collector]"' in shown.stdout
    assert "turnbuckle jobs import results.csv" in shown.stdout
