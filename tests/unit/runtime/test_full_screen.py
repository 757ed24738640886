"""Live views on a terminal: what they leave behind."""

from __future__ import annotations

import asyncio
import sys

import pytest
from rich.console import Console

from schemas.apps import AppSpec
from services._runtime.command.output import full_screen
from services.cli.apps.top import show_live
from services.cli.apps.view_model import ViewModel
from tests.support.deadline import until
from tests.support.pseudo_terminal import OTHER_SCREEN, PseudoTerminal


@pytest.fixture(autouse=True)
def kind_of_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_the_last_picture_stays_above_the_prompt() -> None:
    with PseudoTerminal.opened() as terminal:
        with full_screen(Console(file=terminal.file)) as show:
            show("first picture")
            show("last picture")
        print("prompt$", file=terminal.file, flush=True)

        assert terminal.text().startswith(OTHER_SCREEN)
        assert terminal.left_behind().split() == ["last", "picture", "prompt$"]


def test_of_a_program_that_fails_the_last_picture_stays_too() -> None:
    def fail() -> None:
        with full_screen(Console(file=terminal.file)) as show:
            show("last picture")
            raise OSError("gone")

    with PseudoTerminal.opened() as terminal:
        with pytest.raises(OSError, match="gone"):
            fail()

        assert "last picture" in terminal.left_behind()


async def test_the_view_of_applications_leaves_behind_how_they_stand_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, stop = ViewModel(), asyncio.Event()
    for name in ("job-first", "shop"):
        state.announce(AppSpec(name=name, cpu_limit=1.0, memory_limit="1GiB"))
    with PseudoTerminal.opened() as terminal:
        monkeypatch.setattr(sys, "stdout", terminal.file)
        shown = asyncio.ensure_future(show_live(state, stop))
        await until(lambda: "job-first" in terminal.text(), what="the first picture")
        state.forget("job-first")
        stop.set()
        await asyncio.wait_for(shown, 60)
        left_behind = terminal.left_behind()

    assert "shop" in left_behind
    assert "job-first" not in left_behind
