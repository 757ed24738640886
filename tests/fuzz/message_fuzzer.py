"""Any bytes at all are given to every decoder. ``make fuzz ARGS="--seed 7 --count 20000"``.

What may happen: a message, or a `CodecError`. A message can be used in every way that services use it: encoded again,
shown as JSON, its columns read. Everything else is a finding, told once per place with its smallest input.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from schemas.codec import CodecError, decode, decode_as, encode, encode_json, is_json
from schemas.message import ColumnarMessage, Message
from schemas.registry import CHANNELS
from schemas.subjects import SubjectError, untoken
from tests.fuzz.message_mutation import Mutator, corpus

DEFAULT_COUNT = 1_000_000
_MOST_SHOWN_BYTES = 400
_MOST_ERROR_CHARACTERS = 1_000
_KINDS = {"oversized", "malformed", "unknown_type", "wrong_type", "invalid"}


@dataclass(slots=True)
class Finding:
    """One place where something else than `CodecError` was raised."""

    what: str
    number: int
    """Of the input: the same seed makes it again."""
    data: bytes
    count: int = 0

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.count} x {self.what}\n  input {self.number}: {self.data[:_MOST_SHOWN_BYTES]!r}"


@dataclass(slots=True)
class FuzzReport:
    """What became of the inputs."""

    seed: int
    count: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    """Kinds of `CodecError`, and types of messages."""
    findings: dict[str, Finding] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """For people."""
        lines = [f"seed {self.seed}: {self.count} inputs in {self.seconds:.1f} s, {len(self.findings)} findings"]
        lines += [f"  {number:>9} {kind}" for kind, number in self.outcomes.most_common()]
        return "\n".join([*lines, *(finding.line for finding in self.findings.values())])

    def note(self, number: int, data: bytes, error: Exception, folders: Sequence[str] = ("/schemas/",)) -> None:
        """Take a finding; ``folders``: in whose files the place is looked for that it is told once for."""
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if any(name in frame.filename for name in folders)] or list(frames)
        where = f"{ours[-1].filename.rpartition('/')[2]}:{ours[-1].lineno}"
        what = f"{type(error).__name__} at {where}: {str(error)[:160]}"
        finding = self.findings.setdefault(f"{type(error).__name__} {where}", Finding(what, number, data))
        finding.count += 1
        if len(data) < len(finding.data):
            finding.what, finding.number, finding.data = what, number, data


def use(message: Message) -> None:
    """Everything that services do with a message that they have decoded."""
    again = decode(encode(message))
    assert type(again) is type(message), "another type came back"
    assert encode(again) == encode(message), "another message came back"
    shown = encode_json(message)
    if not isinstance(message, ColumnarMessage):
        decode_as(shown, type(message))
        return
    for name in message.column_types:
        assert message.column(name).shape == (message.row_count,)
    assert len(message.rows()) == len(message.keys) == message.row_count


def _steps(data: bytes, model: type[Message]) -> list[tuple[str, Callable[[], Message]]]:
    return [("decode", lambda: decode(data)), ("decode_as", lambda: decode_as(data, model))]


def _subjects(data: bytes) -> None:
    """Subjects arrive as text; whoever parses them expects `SubjectError` only."""
    text = data[:300].decode("latin-1")
    with contextlib.suppress(SubjectError):
        untoken(text)
    for channel in CHANNELS:
        try:
            channel.template.parse("tb", text)
        except SubjectError:
            continue


def fuzz(seed: int, count: int, *, tell: Callable[[FuzzReport], None] = lambda _: None) -> FuzzReport:
    """Try so many inputs; `tell` hears of the progress now and then."""
    report, mutator, start_s = FuzzReport(seed), Mutator(seed, corpus(seed)), time.monotonic()
    for number in range(count):
        try_one(report, mutator, number)
        report.count += 1
        report.seconds = time.monotonic() - start_s
        if report.count % 100_000 == 0:
            tell(report)
    return report


def try_one(report: FuzzReport, mutator: Mutator, number: int) -> None:
    """One input through every decoder."""
    model, data = mutator.make(number)
    is_json(data)
    if number % 50 == 0:
        _attempt(report, number, data, lambda: _subjects(data))
    for name, step in _steps(data, model):
        message = _attempt(report, number, data, step, told=name == "decode")
        if isinstance(message, Message) and name == "decode":
            _attempt(report, number, data, lambda message=message: use(message))


def _attempt(report: FuzzReport, number: int, data: bytes, step: Callable[[], object], *, told: bool = False) -> object:
    try:
        result = step()
    except CodecError as error:
        if error.kind not in _KINDS or len(str(error)) >= _MOST_ERROR_CHARACTERS:
            report.note(number, data, error)
        if told:
            report.outcomes[error.kind] += 1
        return None
    except Exception as error:  # noqa: BLE001 - that is what we look for
        report.note(number, data, error)
        return None
    if told:
        report.outcomes[type(result).__name__] += 1
    return result


def main() -> int:
    """1 where there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.message_fuzzer", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="default: another one each time")
    parser.add_argument("--count", type=int, default=DEFAULT_COUNT, help="inputs (default %(default)s)")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    report = fuzz(given.seed, given.count, tell=lambda now: print(f"... {now.count}", file=sys.stderr, flush=True))
    print(report.text)
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
