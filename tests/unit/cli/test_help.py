"""Every command's help: a sentence, an example of itself, a word on each option; and the shells' completion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from services._runtime.interpreter import installed_services
from services.cli import collector_commands
from services.cli.main import app
from services.cli.tool_run import Tool

ROOT: Any = typer.main.get_command(app)
TOOLS = {
    " ".join((tool.name, *tool.first)): tool for tool in vars(collector_commands).values() if isinstance(tool, Tool)
}
JSON_LESS = {"exec", "lab fault", "nats declare"}
"""They print what the command that they run prints, or a sentence."""


def commands(command: Any = ROOT, path: str = "") -> Iterator[tuple[str, Any]]:
    """All of them, groups too, by what is typed."""
    for name, inner in getattr(command, "commands", {}).items():
        typed = f"{path} {name}".strip()
        yield typed, inner
        yield from commands(inner, typed)


ALL = dict(commands())
SERVICES = {f"run {name}" for name in installed_services()}
OURS = {typed: command for typed, command in ALL.items() if typed not in TOOLS and typed not in SERVICES}


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


@pytest.mark.parametrize("typed", TOOLS)
def test_tools_have_an_example_of_themselves(typed: str) -> None:
    assert TOOLS[typed].examples
    assert all(example.startswith(typed) for example in TOOLS[typed].examples)
    assert (ALL[typed].help or "").strip()


@pytest.mark.parametrize("typed", [typed for typed, command in OURS.items() if not hasattr(command, "commands")])
def test_what_prints_data_prints_it_as_json_too(typed: str) -> None:
    assert (typed not in JSON_LESS) == any("--json" in option.opts for option in OURS[typed].params)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("turnbuckle ex", {"exec", "explain"}),
        ("turnbuckle run a", {"agent", "allocator", "advisor"}),
        ("turnbuckle fabric ", {"plan", "up", "check", "down"}),
    ],
)
def test_a_shell_completes(words: str, offered: set[str]) -> None:
    asked = {"_TURNBUCKLE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    shown = CliRunner().invoke(app, [], env=asked, prog_name="turnbuckle")

    assert set(shown.stdout.split()) == offered
