"""Tools that are processes of another service: started here, their JSON lines rendered, their exit codes passed on.

They need what this command does not load (torch, DuckDB, root, the user's code), so they run beside it. On standard
output they write one JSON object a line with a field ``event``, on standard error sentences for people.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Any, Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from services._runtime.child_process import die_with_parent
from services._runtime.command.errors import CommandError
from services._runtime.command.output import errors_as_json, print_error, print_line, stderr_console, stdout_console
from services._runtime.exit_code import JSON_OPTION
from services._runtime.service.interpreter import isolated_command

_START: Final = "services._runtime.command.tool_start"
_TERMINATED: Final = 128
_ROWS: Final = frozenset({"row", "plan"})
_QUIET: Final = frozenset({"event", "stderr_tail"})
_MAX_COLUMNS: Final = 9
_MINUTE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Tool:
    """A process that a command stands for."""

    module: str
    """What ``python -m`` runs."""
    name: str
    """As the user knows it: ``emulate``."""
    summary: str = ""
    """A sentence for lists of commands."""
    first: tuple[str, ...] = ()
    """Arguments that the command itself stands for."""
    examples: tuple[str, ...] = ()
    """Command lines for the end of its help."""

    def command(self, arguments: Sequence[str]) -> list[str]:
        """How it is run."""
        return isolated_command(_START, self.module, *self.first, *arguments)

    def describing(self, option: str) -> list[str]:
        """How it is asked what it takes; its sub-commands answer together."""
        return isolated_command(_START, self.module, option)

    def renamed(self, text: str) -> str:
        """What it says about itself, under the name that the user knows."""
        return text.replace(f"python -m {self.module}", f"turnbuckle {self.name}")


def run_tool(tool: Tool, arguments: Sequence[str]) -> int:
    """Run a tool to its end and return its exit code; interrupts are handed on to it.

    Args:
        tool: Which one.
        arguments: As typed; ``--json`` before a ``--`` passes its lines through unchanged, and ends with a JSON
            object on stderr where the tool has ended by an error.

    Raises:
        CommandError: it cannot be started.
    """
    own, separator, rest = _split(arguments)
    as_json = JSON_OPTION in own
    given = [one for one in own if one != JSON_OPTION] + separator + rest
    with errors_as_json(wanted=as_json):
        return _run(tool, given, as_json=as_json)


def _run(tool: Tool, given: list[str], *, as_json: bool) -> int:
    try:
        process = subprocess.Popen(  # noqa: S603 - our own tools
            tool.command(given),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # In a session of its own: Ctrl-C reaches it once, from here, and it stops its children itself.
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGINT),  # noqa: PLW1509 - one prctl
        )
    except OSError as error:
        raise CommandError(f"{tool.name} cannot be started: {error.strerror}") from error
    with process, _forwarding_interrupts(process):
        tool_output = _render(process, tool, as_json=as_json)
        code = process.wait()
    code = code if code >= 0 else _TERMINATED - code
    if as_json and code and (message := tool_output.failure(tool.name, code)) is not None:
        print_error(tool.renamed(message), code)
    return code


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """What stands before a ``--``, the ``--``, and the rest, which is another program's."""
    if "--" not in arguments:
        return list(arguments), [], []
    at = list(arguments).index("--")
    return list(arguments[:at]), ["--"], list(arguments[at + 1 :])


@contextmanager
def _forwarding_interrupts(process: subprocess.Popen[str]) -> Iterator[None]:
    """The first SIGINT or SIGTERM stops it cleanly; a third one kills it."""
    counted = 0

    def forward_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal counted
        counted += 1
        if process.poll() is None:
            process.send_signal(signal.SIGKILL if counted > 2 else number)

    if threading.current_thread() is not threading.main_thread():  # signal handlers belong to the main thread
        yield
        return
    before = {number: signal.signal(number, forward_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _render(process: subprocess.Popen[str], tool: Tool, *, as_json: bool) -> ToolOutput:
    assert process.stdout is not None
    assert process.stderr is not None
    console = stderr_console()
    with _bars(console) as bars:
        shown_on = bars.console if bars is not None else console
        stderr_reader = threading.Thread(target=_forward, args=(process.stderr, tool, shown_on), daemon=True)
        stderr_reader.start()
        tool_output = ToolOutput(bars, console)
        for line in process.stdout:
            if as_json:
                print_line(line.rstrip("\n"))
            if (event := read_event(line)) is not None:
                tool_output.take(event)
        stderr_reader.join()
    if not as_json:
        tool_output.print_result(stdout_console())
    return tool_output


def _forward(stream: IO[str], tool: Tool, console: Console) -> None:
    for line in stream:
        console.print(escape(tool.renamed(line.rstrip("\n"))))


@contextmanager
def _bars(console: Console) -> Iterator[Progress | None]:
    """Progress bars on a terminal; None elsewhere."""
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        yield bars


def read_event(line: str) -> dict[str, Any] | None:
    """One line of a tool; None where it is none of its events (something else that the tool loads has printed)."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


@dataclass(slots=True)
class ToolOutput:
    """Events of a tool, shown as progress bars and collected for the end."""

    bars: Progress | None
    console: Console
    """For progress lines where there are no bars."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    document: str | None = None
    """A file's text, which is all that is printed."""
    error: str | None = None
    """The message of the event that ended it."""
    _bar: TaskID | None = None
    _printed_s: float = 0.0

    def take(self, event: dict[str, Any]) -> None:
        """Move the bar, or keep the event for the end."""
        kind = event["event"]
        if kind in {"progress", "sample"}:
            self._move(event)
        elif kind == "result":
            self.result = event
        elif kind == "document":
            self.document = str(event["text"])
        elif kind == "error" and "exit_code" in event:
            self.error = str(event["message"])
        elif kind in _ROWS and all(_is_scalar(value) for value in event.values()):
            self.rows.append(event)

    def failure(self, name: str, code: int) -> str | None:
        """Why a tool ended with a code other than 0; None where it has a result, which says so itself."""
        if self.error is None and self.result is not None:
            return None
        return self.error or f"{name} ended with exit code {code}"

    def _move(self, event: dict[str, Any]) -> None:
        done = event.get("done", event.get("elapsed_s"))
        total = event.get("total", event.get("limit_s"))
        if not isinstance(done, (int, float)):
            return
        if self.bars is None:
            self._print_each_minute(event)
            return
        if self._bar is None:
            self._bar = self.bars.add_task("", total=None)
        self.bars.update(self._bar, completed=round(done), total=None if total is None else round(total))

    def _print_each_minute(self, event: dict[str, Any]) -> None:
        """Print the elapsed time of a sampling run each minute, for logs; other tools print each step themselves."""
        elapsed_s, limit_s = event.get("elapsed_s"), event.get("limit_s")
        if (
            event["event"] != "sample"
            or not isinstance(elapsed_s, (int, float))
            or elapsed_s < self._printed_s + _MINUTE_S
        ):
            return
        self._printed_s = elapsed_s
        of = f" of {limit_s:.0f}" if isinstance(limit_s, (int, float)) else ""
        self.console.print(f"{elapsed_s:.0f}{of} s")

    def print_result(self, console: Console) -> None:
        """The document as it is; or the rows as a table, and the result line by line."""
        if self.document is not None:
            print_line(self.document.removesuffix("\n"))
            return
        if self.rows:
            console.print(_table(self.rows))
        for name, value in (self.result or {}).items():
            if name not in _QUIET and value not in (None, "", [], {}):
                console.print(f"{name}: {escape(_plain(value))}", soft_wrap=True)


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    names = [name for name in rows[0] if name not in _QUIET and name != "note"][:_MAX_COLUMNS]
    table = Table(box=None, header_style="bold")
    for name in names:
        number = all(isinstance(row.get(name), (int, float)) or row.get(name) is None for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if number else "left")
    for row in rows:
        table.add_row(*(escape(_plain(row[name])) if row.get(name) is not None else "-" for name in names))
    return table
