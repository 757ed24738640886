"""Measured figures in README and docs, each out of a kept record: ``python -m scripts.generate_figures``.

A record is ``docs/figures/NAME.json``: what was measured, where, when, by which command at which revision, and rows
with median, smallest and largest value and unit. A page shows rows of records in a block:

    <!-- figures: NAME/ROW NAME/ROW -->
    (a table that this module writes)
    <!-- end of figures -->

A table with columns of its own is ``docs/figures/tables/NAME.json`` and stands between ``<!-- table: NAME -->`` and
``<!-- end of table -->``. A measured figure in a sentence repeats one of a record of its section, or the sentence is
kept in ``docs/figures/stated/PAGE.json``, by section, as it was transcribed.

``python -m scripts.generate_figures --take FILE... --as NAME --command "..."`` makes a record from what a benchmark, or
the demo with ``--json``, has written: each number that all files hold becomes a row, over the files. A file with
``figures`` (rows by key) gives those rows instead, one with ``tables`` (columns, rows and machine by name) tables:
``docs/figures/tables/NAME-KEY.json``.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from tests.bench.machine import Machine, this_machine

ROOT: Final = Path(__file__).resolve().parent.parent
RECORDS: Final = ROOT / "docs" / "figures"
TABLES: Final = RECORDS / "tables"
STATED: Final = RECORDS / "stated"
"""Sentences with measured figures that stand in no record, by page and section: exactly these may stand there."""

CONSTANTS: Final = RECORDS / "constants.txt"
"""Figures that nobody measured, such as the sampling period: ``PAGE: TEXT`` per line, ``#`` begins a comment."""

CHECKED: Final = tuple(
    ROOT / page
    for page in (
        "README.md",
        "docs/advisor.md",
        "docs/benchmarks.md",
        "docs/compose.md",
        "docs/edge.md",
        "docs/events.md",
        "docs/how-it-works.md",
        "docs/install.md",
        "docs/known-limitations.md",
        "docs/newcomer.md",
        "docs/operations.md",
        "docs/runtimes.md",
    )
)
"""Pages on which no measured figure stands that is in no record."""

_BLOCK = re.compile(r"(<!-- figures: ([^>]*?) -->\n)(.*?)(<!-- end of figures -->\n)", re.DOTALL)
_TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end of table -->\n)", re.DOTALL)
_WRITTEN = re.compile(r"<!-- advisor cut: .*?<!-- end of advisor cut -->\n", re.DOTALL)
"""What another command writes into a page: ``python -m tests.bench.advisor_cut``."""

_REPEATS = re.compile(r"<!-- repeats: (.*?) -->", re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n)+")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_UNIT = r"(?:%|us\b|ms\b|s\b|min\b|minutes?\b|hours?\b|[KMGT]i?B\b|cores?\b|times\b|x\b|runs\b)"
_FIGURE = re.compile(rf"(?<![\w.])\d[\d,.]*(?:\s?{_UNIT})")
_NUMBER = re.compile(r"(?<![\w.,])(?:\d[\d,]*)?\.?\d+")


@dataclass(frozen=True, slots=True)
class Row:
    """One measured quantity. ``shown`` replaces the figure in a table where text says more, such as `0 of 400 runs`."""

    what: str
    unit: str
    median: float | None = None
    min: float | None = None
    max: float | None = None
    shown: str = ""

    @property
    def figure(self) -> str:
        """Median with its range, and unit."""
        if self.shown:
            return self.shown
        if self.median is None:
            raise ValueError(f"{self.what!r} has neither a median nor a text")
        text = _number(self.median)
        if self.min is not None and self.max is not None and self.min != self.max:
            text += f" ({_number(self.min)}-{_number(self.max)})"
        return f"{text} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Record:
    """What one command has measured. `transcribed`: from a page, because what the command wrote was not kept."""

    machine: str
    date: str
    command: str
    revision: str
    rows: dict[str, Row] = field(default_factory=dict)
    transcribed: bool = False
    source: str = ""

    @classmethod
    def load(cls, path: Path) -> Record:
        """Of a file. ValueError: a field is missing, unknown or empty."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            record = cls(**{**content, "rows": {key: Row(**row) for key, row in content["rows"].items()}})
        except (TypeError, KeyError) as error:
            raise ValueError(f"{path.name}: {error}") from error
        date.fromisoformat(record.date)
        missing = [name for name in ("machine", "command", "revision", "rows") if not getattr(record, name)]
        if missing or record.transcribed != bool(record.source):
            raise ValueError(f"{path.name}: lacks {', '.join(missing) or 'either transcribed or source'}")
        for row in record.rows.values():
            _ = row.figure
        return record

    def text(self) -> str:
        """The content of its file."""
        content = asdict(self)
        if not self.transcribed:
            del content["transcribed"], content["source"]
        for row in content["rows"].values():
            if not row["shown"]:
                del row["shown"]
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of measured figures, cell by cell as it is shown.

    None in `machine`, `date`, `command` or `revision`: not known, which only what was transcribed from a page may say.
    `unit`: of the cells whose column and row name none. `revision`, where transcribed: the commit that last changed
    a row.
    """

    machine: str | None
    date: str | None
    command: str | None
    revision: str | None
    columns: list[str]
    rows: list[list[str]]
    unit: str = ""
    transcribed: bool = False
    source: str = ""

    @classmethod
    def load(cls, path: Path) -> Table:
        """Of a file. ValueError: a field is missing or unknown, or a row has not as many cells as there are columns."""
        try:
            table = cls(**json.loads(path.read_text(encoding="utf-8")))
        except TypeError as error:
            raise ValueError(f"{path.name}: {error}") from error
        if table.date is not None:
            date.fromisoformat(table.date)
        if table.transcribed != bool(table.source):
            raise ValueError(f"{path.name}: lacks either transcribed or source")
        if not table.transcribed and not (table.machine and table.date and table.command and table.revision):
            raise ValueError(f"{path.name}: only what was transcribed may lack machine, date, command or revision")
        if not table.rows or any(len(row) != len(table.columns) for row in table.rows):
            raise ValueError(f"{path.name}: a row has not as many cells as there are columns")
        return table

    def text(self) -> str:
        """The content of its file: a row a line."""
        fields = {key: value for key, value in asdict(self).items() if key not in ("columns", "rows")}
        lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()]
        lines.append(f' "columns": {json.dumps(self.columns, ensure_ascii=False)}')
        rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in self.rows)
        lines.append(f' "rows": [\n{rows}\n ]')
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def markdown(self) -> str:
        """As pages show it."""
        separator = "|" + "---|" * len(self.columns)
        return "\n".join([_line(self.columns), separator, *map(_line, self.rows)]) + "\n"

    def figures(self) -> set[tuple[str, str]]:
        """Every number with each unit that its cell, column, row or table names."""
        found: set[tuple[str, str]] = set()
        for row in self.rows:
            for column, cell in zip(self.columns, row, strict=True):
                units = re.findall(rf"(?<![A-Za-z]){_UNIT}", f"{column} {row[0]} {cell}") or [self.unit]
                found |= {(_plain(number), unit) for number in _NUMBER.findall(cell) for unit in units}
        return found


def tables(directory: Path = TABLES) -> dict[str, Table]:
    """Every kept table by its name."""
    return {path.stem: Table.load(path) for path in sorted(directory.glob("*.json"))}


def _line(cells: Sequence[str]) -> str:
    """A row of a Markdown table; an empty cell is one space."""
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def _plain(number: str) -> str:
    """Without separators of thousands and with a zero before the point, so that `.061` is `0.061`."""
    number = number.replace(",", "").rstrip(".")
    return f"0{number}" if number.startswith(".") else number


def records(directory: Path = RECORDS) -> dict[str, Record]:
    """Every kept record by its name."""
    return {path.stem: Record.load(path) for path in sorted(directory.glob("*.json"))}


def _number(value: float) -> str:
    """Three significant digits, as tables have them."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def block(rows: str, kept: dict[str, Record]) -> str:
    """The table of a block, from the ``NAME/ROW`` of its first line. ValueError: no such record or row."""
    lines = ["| | median (range) | measured |", "|---|---|---|"]
    for reference in rows.split():
        name, _, key = reference.partition("/")
        if name not in kept or key not in kept[name].rows:
            raise ValueError(f"no row {reference} in docs/figures")
        record, row = kept[name], kept[name].rows[key]
        target, _, options = record.command.partition(" ARGS=")
        # The options stand in the record.
        lines.append(f"| {row.what} | {row.figure} | {record.date}, `{target}{' ...' * bool(options)}` |")
    return "\n".join(lines) + "\n"


def with_blocks(page: str, kept: dict[str, Record], kept_tables: dict[str, Table] | None = None) -> str:
    """The page with every block and every table written anew. ValueError: no such record, row or table."""

    def table(found: re.Match[str]) -> str:
        if found[2] not in (kept_tables or {}):
            raise ValueError(f"no table {found[2]} in docs/figures/tables")
        return f"{found[1]}{(kept_tables or {})[found[2]].markdown()}{found[4]}"

    return _TABLE.sub(table, _BLOCK.sub(lambda found: f"{found[1]}{block(found[2], kept)}{found[4]}", page))


def pages() -> dict[Path, str]:
    """README and the pages of docs as the records would have them."""
    kept, kept_tables = records(), tables()
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return {path: with_blocks(path.read_text(encoding="utf-8"), kept, kept_tables) for path in found}


def constants(text: str, page: str) -> list[str]:
    """Those of one page, the longest first. ValueError: a line that names no page."""
    found = []
    for line in text.splitlines():
        content = line.partition("#")[0].strip()
        name, colon, constant = content.partition(": ")
        if content and not colon:
            raise ValueError(f"constants.txt: {content!r} names no page")
        if name == page:
            found.append(constant.strip())
    return sorted(found, key=len, reverse=True)


def stated(page: str, directory: Path = STATED) -> dict[str, list[str]]:
    """Sentences with measured figures of one page by the section (`## `) that they stand in."""
    path = directory / f"{Path(page).stem}.json"
    if not path.exists():
        return {}
    sections: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))["sections"]
    return sections


def sections_of(page: str) -> Iterator[tuple[str, str]]:
    """Name and text of each part that begins with `## `; what comes before the first one has no name."""
    for section in re.split(r"^(?=## )", page, flags=re.MULTILINE):
        name = section.partition("\n")[0]
        yield name.removeprefix("## ") if name.startswith("## ") else "", section


def prose(text: str) -> str:
    """What stands in no block, on one line; code is two backquotes."""
    for block_of_figures in (_BLOCK, _TABLE, _WRITTEN, _INDENTED):
        text = block_of_figures.sub("", text)
    return " ".join(_CODE.sub("``", text).split())


def figures_outside(page: str, allowed: Sequence[str]) -> list[str]:
    """Numbers with a unit that stand in no block, in no code, and among no constants."""
    text = prose(page)
    for constant in allowed:
        text = re.sub(rf"(?<![\d.,]){re.escape(constant)}(?!\w)", "", text)
    return _FIGURE.findall(text)


def figures_without_a_record(
    page: str,
    allowed: Sequence[str],
    sentences: dict[str, list[str]],
    kept: dict[str, Record],
    kept_tables: dict[str, Table],
) -> list[str]:
    """Those of `figures_outside` that stand in no kept sentence and repeat no figure of a record of the same section.

    The records of a section (`## `) are those that it shows, and those that it names by ``<!-- repeats: NAME -->``.
    ValueError: a name that no record and no table has, or a kept sentence that does not stand in its section.
    """
    found = []
    for title, section in sections_of(page):
        known = _known(section, kept, kept_tables)
        text = prose(section)
        for sentence in sentences.get(title, []):
            if sentence not in text:
                raise ValueError(f"{sentence!r} does not stand in the section {title!r}")
            text = text.replace(sentence, "", 1)
        found += [one for one in figures_outside(text, allowed) if _split(one) not in known]
    if unknown := set(sentences) - {title for title, _ in sections_of(page)}:
        raise ValueError(f"no sections {sorted(unknown)}")
    return found


def _known(section: str, kept: dict[str, Record], kept_tables: dict[str, Table]) -> set[tuple[str, str]]:
    """The figures of all records that a section shows or names."""
    names = [found[2] for found in _TABLE.finditer(section)]
    names += [one.partition("/")[0] for found in _BLOCK.finditer(section) for one in found[2].split()]
    names += [one for found in _REPEATS.finditer(section) for one in found[1].split()]
    known: set[tuple[str, str]] = set()
    for name in names:
        if name not in kept and name not in kept_tables:
            raise ValueError(f"no record {name} in docs/figures")
        if name in kept_tables:
            known |= kept_tables[name].figures()
        if name in kept:
            rows = kept[name].rows.values()
            known |= {_split(one) for row in rows if row.shown for one in _FIGURE.findall(row.shown)}
            known |= {(_plain(one), row.unit) for row in rows if not row.shown for one in _NUMBER.findall(row.figure)}
    return known


def _split(figure: str) -> tuple[str, str]:
    """`4.4 ms` as its number and its unit."""
    number = _NUMBER.match(figure)
    if number is None:
        raise ValueError(f"{figure!r} begins with no number")
    return _plain(number[0]), figure[number.end() :].strip(" .,")


def numbers(value: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a JSON value, by its dotted path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from numbers(item, f"{prefix}.{index}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield prefix, value


def unit_of(path: str) -> str:
    """By the suffix that our field names have."""
    units = {"us": "us", "ms": "ms", "s": "s", "bytes": "bytes", "mib": "MiB", "cores": "cores", "percent": "%"}
    return units.get(path.rpartition("_")[2], "")


def take(contents: Sequence[dict[str, Any]], command: str, machine: str, day: str, commit: str) -> Record:
    """A record of what repetitions of one command have written. ValueError: they hold no number in common."""
    measured = [dict(numbers({key: value for key, value in c.items() if key != "machine"})) for c in contents]
    common = [path for path in measured[0] if all(path in one for one in measured)]
    if not common:
        raise ValueError("these files hold no number in common")
    rows = {}
    for path in common:
        values = [one[path] for one in measured]
        rows[path] = Row(path.replace("_", " "), unit_of(path), statistics.median(values), min(values), max(values))
    return Record(machine, day, command, commit, rows)


def take_tables(content: dict[str, Any], command: str, day: str, commit: str) -> dict[str, Table]:
    """The tables of a file by name, as the benchmark has written them. ValueError: one is not as `Table` wants it."""
    try:
        return {
            key: Table(one["machine"], day, command, commit, one["columns"], one["rows"])
            for key, one in content["tables"].items()
        }
    except (KeyError, TypeError) as error:
        raise ValueError(f"tables: {error}") from error


def take_figures(content: dict[str, Any], command: str, machine: str, day: str, commit: str) -> Record:
    """The rows that a benchmark has written for pages. ValueError: there are none, or one is not as `Row` wants it."""
    try:
        rows = {key: Row(**row) for key, row in content["figures"].items()}
        figures = [row.figure for row in rows.values()]
    except TypeError as error:
        raise ValueError(f"figures: {error}") from error
    if not figures:
        raise ValueError("figures: there are none")
    return Record(machine, day, command, commit, rows)


def machine_of(content: dict[str, Any]) -> str:
    """What the benchmark wrote of its machine, or what can be seen of this one."""
    known = content.get("machine")
    if isinstance(known, dict) and known.keys() == {field.name for field in fields(Machine)}:
        return Machine(**known).line
    if isinstance(known, dict):
        return ", ".join(f"{key} {value}" for key, value in known.items())
    if isinstance(known, str):
        return known
    return this_machine().line


def revision() -> str:
    """Of this checkout; ``-dirty`` where files differ from it."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603


def _take(files: Sequence[Path], name: str, command: str, commit: str) -> list[Path]:
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    day = datetime.fromtimestamp(max(path.stat().st_mtime for path in files), UTC).date().isoformat()
    if "tables" in contents[0]:
        if len(files) > 1:
            raise ValueError("the cells of tables have no median: --take needs one file")
        kept = take_tables(contents[0], command, day, commit)
        written = {RECORDS / "tables" / f"{name}-{key}.json": table.text() for key, table in kept.items()}
    elif "figures" in contents[0]:
        if len(files) > 1:
            raise ValueError("a benchmark's figures are of one run: --take needs one file")
        record = take_figures(contents[0], command, machine_of(contents[0]), day, commit)
        written = {RECORDS / f"{name}.json": record.text()}
    else:
        record = take(contents, command, machine_of(contents[0]), day, commit)
        written = {RECORDS / f"{name}.json": record.text()}
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(written)


def main(arguments: Sequence[str] | None = None) -> None:
    """Take a record where one is given, then write the pages that changed."""
    parser = argparse.ArgumentParser(prog="generate_figures", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--take", type=Path, nargs="+", metavar="FILE", help="JSON of each repetition of the command")
    parser.add_argument("--as", dest="name", help="name of the record")
    parser.add_argument("--command", help="the command that wrote the files")
    parser.add_argument("--revision", help="of the checkout that it ran in (default: this one's)")
    options = parser.parse_args(arguments)
    if options.take:
        if not (options.name and options.command):
            parser.error("--take needs --as and --command")
        for path in _take(options.take, options.name, options.command, options.revision or revision()):
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
    for path, text in pages().items():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
