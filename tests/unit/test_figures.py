"""Measured figures of README and docs come out of kept records (scripts/generate_figures.py)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scripts import generate_figures as figures
from tests.bench.machine import Machine

MAX_README_WORDS = 900
PAGES = figures.pages()
ROW = figures.Row("time to a limit", "ms", 4.15, 2.8, 12.6)
RECORDS, TABLES = figures.records(), figures.tables()
CONSTANTS = figures.CONSTANTS.read_text(encoding="utf-8")
TABLE = figures.Table(
    "a machine",
    "2026-11-24",
    "make bench",
    "0123abc",
    ["growth", "p99, ms", "GB/s"],
    [["read", ".4", ""], ["", "1,500", "2"]],
)
KEPT = {"one": figures.Record("a machine", "2026-11-21", "make bench", "0123abc", {"row": ROW})}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_blocks_are_as_the_records_have_them(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path], "run `make docs` and commit what it wrote"


@pytest.mark.parametrize("path", figures.CHECKED, ids=lambda path: path.name)
def test_no_measured_figure_stands_outside_of_a_block(path: Path) -> None:
    allowed, sentences = figures.constants(CONSTANTS, path.name), figures.stated(path.name)
    text = path.read_text(encoding="utf-8")

    assert figures.figures_without_a_record(text, allowed, sentences, RECORDS, TABLES) == []


def test_every_constant_stands_on_the_page_that_it_names() -> None:
    prose = {path.name: figures.prose(path.read_text(encoding="utf-8")) for path in figures.CHECKED}
    named = {line.partition(":")[0] for line in CONSTANTS.splitlines() if line and not line.startswith("#")}

    assert named <= set(prose)
    assert [one for page in named for one in figures.constants(CONSTANTS, page) if one not in prose[page]] == []


def test_sentences_are_kept_of_checked_pages_only() -> None:
    assert {path.stem for path in figures.STATED.glob("*.json")} <= {path.stem for path in figures.CHECKED}


def test_the_readme_is_short() -> None:
    assert len((figures.ROOT / "README.md").read_text(encoding="utf-8").split()) <= MAX_README_WORDS


def test_the_readmes_first_screen_has_a_command_a_recording_and_four_figures() -> None:
    first = PAGES[figures.ROOT / "README.md"].partition("\n## ")[0]

    assert "\nmake run " in first
    assert "\nmake test " in first
    assert ".svg)" in first
    assert first.count("\n| ") == 1 + 4


def test_every_row_of_a_record_is_shown_somewhere() -> None:
    shown = set(re.findall(r"[\w-]+/[\w-]+", " ".join(re.findall(r"<!-- figures: (.*?) -->", "".join(PAGES.values())))))

    assert {f"{name}/{row}" for name, record in figures.records().items() for row in record.rows} - shown == set()


def test_every_table_of_a_record_is_shown_once() -> None:
    shown = re.findall(r"<!-- table: (.*?) -->", "".join(PAGES.values()))

    assert sorted(shown) == sorted(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_the_file_of_a_table_is_as_it_is_written(name: str) -> None:
    path = figures.RECORDS / "tables" / f"{name}.json"

    assert path.read_text(encoding="utf-8") == TABLES[name].text()


def test_a_table_is_written_cell_by_cell() -> None:
    page = "before\n<!-- table: two -->\nold\n<!-- end of table -->\nafter\n"

    written = figures.with_blocks(page, KEPT, {"two": TABLE})

    assert "-->\n| growth | p99, ms | GB/s |\n|---|---|---|\n| read | .4 | |\n| | 1,500 | 2 |\n<!--" in written
    assert figures.with_blocks(written, KEPT, {"two": TABLE}) == written
    assert figures.figures_outside(written, []) == []
    with pytest.raises(ValueError, match="no table two"):
        figures.with_blocks(page, KEPT)


def test_a_sentence_may_repeat_a_figure_of_a_record_of_its_section() -> None:
    kept = {"two": TABLE}
    section = (
        "## A\n<!-- table: two -->\n<!-- end of table -->\n0.4 ms and 1,500 ms, but 1,501 ms, 1,500 s and 4.15 ms.\n"
    )
    named = "## B\n<!-- repeats: one two -->\n0.4 ms at a median of 4.15 ms.\n## C\nHere 0.4 ms.\n"

    assert figures.figures_without_a_record(section, [], {}, KEPT, kept) == ["1,501 ms", "1,500 s", "4.15 ms"]
    assert figures.figures_without_a_record(named, [], {}, KEPT, kept) == ["0.4 ms"]
    with pytest.raises(ValueError, match="no record three"):
        figures.figures_without_a_record("<!-- repeats: three -->\n", [], {}, KEPT, kept)


def test_a_kept_sentence_allows_itself_in_its_section_once() -> None:
    page = "## A\nIt took 3\nms here. It took 4 ms.\n## B\nIt took 3 ms here.\n"

    assert figures.figures_without_a_record(page, [], {"A": ["It took 3 ms here."]}, {}, {}) == ["4 ms", "3 ms"]
    with pytest.raises(ValueError, match="does not stand in the section 'B'"):
        figures.figures_without_a_record(page, [], {"B": ["It took 4 ms."]}, {}, {})
    with pytest.raises(ValueError, match="no sections"):
        figures.figures_without_a_record(page, [], {"C": ["It took 4 ms."]}, {}, {})


def test_constants_are_of_one_page() -> None:
    text = "# conditions\none.md: 3 ms\none.md: every 100 ms  # sampling\ntwo.md: 5 ms\n"

    assert figures.constants(text, "one.md") == ["every 100 ms", "3 ms"]
    with pytest.raises(ValueError, match="names no page"):
        figures.constants("3 ms\n", "one.md")


def test_indented_code_is_code() -> None:
    assert figures.figures_outside("text\n\n    make bench   # 12 minutes\n    make x   # 5 s\n\nin 3 s\n", []) == [
        "3 s"
    ]


def test_a_block_shows_median_range_day_and_command() -> None:
    page = "before\n<!-- figures: one/row -->\nold\n<!-- end of figures -->\nafter 3 ms\n"

    written = figures.with_blocks(page, KEPT)

    assert "| time to a limit | 4.15 (2.8-12.6) ms | 2026-11-21, `make bench` |" in written
    assert "old" not in written
    assert figures.with_blocks(written, KEPT) == written
    assert figures.figures_outside(written, []) == ["3 ms"]


@pytest.mark.parametrize("reference", ["one/none", "none/row", "one"])
def test_a_block_of_an_unknown_row_is_refused(reference: str) -> None:
    with pytest.raises(ValueError, match="no row"):
        figures.block(reference, KEPT)


@pytest.mark.parametrize(
    "text", ["4.4 ms", "12,600 containers and 7 %", "50 MiB", "0.35 times", "400 of 400 runs", "2 GB/s"]
)
def test_a_number_with_a_unit_is_a_figure(text: str) -> None:
    assert figures.figures_outside(f"it took {text} here", [])


@pytest.mark.parametrize(
    "text", ["`4.4 ms`", "```\n4.4 ms\n```", "two hosts, version 0.1.0", "Python 3.11", "every 100 ms."]
)
def test_code_versions_and_constants_are_none(text: str) -> None:
    assert figures.figures_outside(text, ["100 ms"]) == []


def test_a_constant_allows_no_longer_number() -> None:
    assert figures.figures_outside("every 100 ms, but 2,100 ms or 5.100 ms", ["100 ms"]) == ["2,100 ms", "5.100 ms"]


def test_a_record_is_taken_over_repetitions() -> None:
    runs = [{"machine": {"load": 3}, "managed": {"slack_cores": value}, "ok": True, "n": [7]} for value in (3, 1, 2)]
    runs[0]["extra"] = 5

    record = figures.take(runs, "make run", "a machine", "2026-11-24", "0123abc")

    assert record.rows == {
        "managed.slack_cores": figures.Row("managed.slack cores", "cores", 2, 1, 3),
        "n.0": figures.Row("n.0", "", 7, 7, 7),
    }


def test_files_without_a_common_number_are_refused() -> None:
    with pytest.raises(ValueError, match="no number in common"):
        figures.take([{"a": 1}, {"b": 1}], "c", "m", "2026-11-24", "r")


def test_the_command_keeps_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "RECORDS", tmp_path / "docs" / "figures")
    monkeypatch.setattr(figures, "pages", dict)
    monkeypatch.setattr(figures, "revision", lambda: "0123abc")
    result = tmp_path / "scale.json"
    result.write_text(json.dumps({"machine": {"cores": 2}, "latency_ms": 4}))

    figures.main(["--take", str(result), "--as", "scale", "--command", "make bench-scale"])

    record = figures.Record.load(tmp_path / "docs" / "figures" / "scale.json")
    assert (record.machine, record.command, record.transcribed) == ("cores 2", "make bench-scale", False)
    assert record.rows == {"latency_ms": figures.Row("latency ms", "ms", 4, 4, 4)}
    assert "wrote docs/figures/scale.json" in capsys.readouterr().out


def test_the_command_keeps_the_tables_that_a_benchmark_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "RECORDS", tmp_path / "docs" / "figures")
    monkeypatch.setattr(figures, "pages", dict)
    monkeypatch.setattr(figures, "revision", lambda: "0123abc")
    result = tmp_path / "runtimes.json"
    table = {"machine": "2 cores", "columns": ["runtime", "processors"], "rows": [["Go", "2"]]}
    result.write_text(json.dumps({"parts": [1], "tables": {"here": table}}))
    command = ["--as", "runtimes", "--command", "make bench-runtimes", "--take"]

    figures.main([*command, str(result)])

    kept = figures.Table.load(tmp_path / "docs" / "figures" / "tables" / "runtimes-here.json")
    assert (kept.machine, kept.command, kept.revision) == ("2 cores", "make bench-runtimes", "0123abc")
    assert (kept.columns, kept.rows, kept.transcribed) == (["runtime", "processors"], [["Go", "2"]], False)
    with pytest.raises(ValueError, match="needs one file"):
        figures.main([*command, str(result), str(result)])
    result.write_text(json.dumps({"tables": {"here": {"columns": []}}}))
    with pytest.raises(ValueError, match="tables: 'machine'"):
        figures.main([*command, str(result)])


def test_the_command_keeps_the_rows_that_a_benchmark_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "RECORDS", tmp_path / "docs" / "figures")
    monkeypatch.setattr(figures, "pages", dict)
    monkeypatch.setattr(figures, "revision", lambda: "0123abc")
    result = tmp_path / "memory.json"
    machine = Machine("a processor", 2, 8.0, "6.1", "cgroup v1", "3.11", (0.0, 0.0, 0.0))
    row = {"what": "containers killed", "unit": "", "shown": "0 of 200 runs"}
    result.write_text(json.dumps({"machine": machine.as_dict(), "runs": [1], "figures": {"kills": row}}))
    command = ["--as", "memory-growth", "--command", "make bench-memory", "--take"]

    figures.main([*command, str(result)])

    kept = figures.Record.load(tmp_path / "docs" / "figures" / "memory-growth.json")
    assert (kept.machine, kept.transcribed) == (machine.line, False)
    assert kept.rows == {"kills": figures.Row("containers killed", "", shown="0 of 200 runs")}
    with pytest.raises(ValueError, match="needs one file"):
        figures.main([*command, str(result), str(result)])
    for wrong in ({}, {"kills": {"what": "x", "unit": ""}}, {"kills": {"note": 1}}):
        result.write_text(json.dumps({"figures": wrong}))
        with pytest.raises(ValueError, match=r"figures|neither"):
            figures.main([*command, str(result)])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"command": ""}, "lacks command"),
        ({"date": "yesterday"}, "isoformat"),
        ({"transcribed": True}, "transcribed"),
        ({"rows": {}}, "lacks rows"),
        ({"note": 1}, "note"),
        ({"source": "a page"}, "transcribed"),
    ],
)
def test_an_incomplete_record_is_refused(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps({**json.loads(KEPT["one"].text()), **change}))

    with pytest.raises(ValueError, match=reason):
        figures.Record.load(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"date": None}, "only what was transcribed"),
        ({"date": "yesterday"}, "isoformat"),
        ({"transcribed": True}, "transcribed"),
        ({"rows": [["a", "b"]]}, "as many cells"),
        ({"rows": []}, "as many cells"),
        ({"note": 1}, "note"),
    ],
)
def test_an_incomplete_table_is_refused(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    path = tmp_path / "two.json"
    path.write_text(json.dumps({**json.loads(TABLE.text()), **change}))

    with pytest.raises(ValueError, match=reason):
        figures.Table.load(path)


def test_what_is_not_known_of_a_transcribed_table_is_null(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    unknown = {"machine": None, "date": None, "command": None, "transcribed": True, "source": "a page"}
    path.write_text(json.dumps({**json.loads(TABLE.text()), **unknown}))

    table = figures.Table.load(path)

    assert (table.machine, table.date, table.command) == (None, None, None)
    assert table.rows == TABLE.rows
