"""Failed tests of a small project are run once more, alone: by pytest itself, on processes of pytest-xdist."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.rerun import MOST, Outcome, run_and_settle

SETTINGS = (
    "[pytest]\naddopts = -p no:cacheprovider\njunit_family = xunit1\nasyncio_default_fixture_loop_scope = function\n"
)
SUITE = """
import os, pytest
from pathlib import Path

def first_time(name):
    before = Path(__file__).with_name(name)
    if before.exists():
        return False
    before.touch()
    return True

def test_passes():
    pass

@pytest.mark.skip(reason="never")
def test_is_skipped():
    pass

def test_fails_once():
    assert not first_time("call"), "the machine was busy"

@pytest.mark.parametrize("text", ["a::b[c] <&> \\\\x00 d/e.py", "same"])
def test_fails_always(text):
    assert text == "same", "wrong"

class TestOrder:
    def test_method_fails_once(self):
        assert not first_time("method")

@pytest.fixture
def ends_badly_once():
    yield
    assert not first_time("teardown"), "left over"

def test_whose_teardown_fails_once(ends_badly_once):
    pass

@pytest.fixture
def ends_badly():
    yield
    raise OSError("cannot remove")

def test_whose_call_and_teardown_fail(ends_badly):
    assert False, "the call"

def test_ends_its_process_once():
    if first_time("process"):
        os._exit(3)
"""


def settled(folder: Path, source: str, *options: str) -> Outcome:
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "inner").mkdir()
    (folder / "inner" / "test_it.py").write_text(source)
    return run_and_settle(["-q", *options], root=folder)


def test_what_fails_again_is_red_and_what_passes_alone_is_flaky(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = settled(tmp_path, SUITE, "--numprocesses", "2")

    printed = capsys.readouterr().out
    flaky = {failure.test.removeprefix("inner/test_it.py::"): failure.error for failure in outcome.flaky}
    assert flaky.keys() == {
        "test_fails_once",
        "TestOrder::test_method_fails_once",
        "test_whose_teardown_fails_once",
        "test_ends_its_process_once",
    }
    assert flaky["test_fails_once"] == "AssertionError: the machine was busy"
    assert "\nFLAKY inner/test_it.py::test_fails_once  AssertionError: the machine was busy\n" in printed
    assert [test.partition("[")[0] for test in sorted(outcome.failed)] == [
        "inner/test_it.py::test_fails_always",
        "inner/test_it.py::test_whose_call_and_teardown_fail",
    ]
    # test_passes, test_fails_always[same], and the four flaky ones
    assert outcome.passed == 6
    assert outcome.red
    assert printed.count("AssertionError: wrong") > 2, "a node id with any characters is found again"
    both = printed.partition("RED inner/test_it.py::test_whose_call_and_teardown_fail")[2]
    first, _, alone = both.partition("-- alone:")
    assert "AssertionError: the call" in first
    assert "AssertionError: the call" in alone
    assert "OSError: cannot remove" in alone
    assert "(pytest ended with 1)" in alone


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_file_that_cannot_be_collected_is_red_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], processes: str
) -> None:
    # It could be the second time.
    source = SUITE.partition("def test_passes")[0] + "if first_time('import'):\n    raise OSError('no file')\n"

    outcome = settled(tmp_path, source + "def test_x(): pass\n", "--numprocesses", processes)

    assert outcome.red
    assert not outcome.flaky
    assert "RED could not be collected: inner/test_it.py" in capsys.readouterr().out


@pytest.mark.parametrize("processes", ["0", "2"])
def test_more_failures_than_a_flake_has_are_red_at_once(tmp_path: Path, processes: str) -> None:
    # Each would pass the second time.
    source = SUITE.partition("def test_passes")[0] + (
        f"@pytest.mark.parametrize('n', range({MOST + 1}))\ndef test_once(n):\n    assert not first_time(str(n))\n"
    )

    outcome = settled(tmp_path, source, "--numprocesses", processes)

    assert (len(outcome.failed), outcome.flaky) == (MOST + 1, ())


@pytest.mark.parametrize(
    ("options", "red"),
    [([], True), (["--no-such-option"], True), (["--deselect", "inner/test_it.py::test_one"], False)],
)
def test_no_test_at_all_is_red(tmp_path: Path, options: list[str], *, red: bool) -> None:
    source = "" if red else "def test_one(): assert False\n\ndef test_two(): pass\n"

    assert settled(tmp_path, source, *options).red is red
