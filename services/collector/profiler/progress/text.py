"""Numbers of a line of output that may count a training's progress, each with its label.

Such a number is of a total (``120/500``, ``[3/10]``), or follows a word (``epoch 3``, ``"step": 120``), or begins the
line as boosting libraries have it (``[12]``, ``12:``). Percentages, durations and losses are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

MAX_LINE_CHARACTERS: Final = 2_000
_MAX_LABEL_CHARACTERS: Final = 48
_MAX_READINGS: Final = 8
"""Of one line."""

_CONTROL: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.?|[\x00-\x08\x0b-\x1f\x7f]"
)
_BAR: Final = re.compile(r"\d{1,3}%\|[^|]*\||(?<![\d.])\d{1,3}(?:\.\d+)?%|[━╸╺─█▏▎▍▌▋▊▉▇▆▅▄▃▂▁]+")
"""A bar's drawing, and percentages: they say nothing that the count beside them does not."""
_NUMBER: Final = r"(?>\d{1,3}(?:[,_]\d{3})+(?!\d)|\d+(?:\.\d+)?(?:[kKMG](?![A-Za-z]))?)"
_NO_UNIT: Final = r"(?![A-Za-z%]|\.\d|[:/-]\d|\s*(?:%|(?:s|sec|secs|seconds|ms|min|minutes|hours?|it/s)\b))"
"""What follows a count: a duration or a share is none."""
_OF: Final = rf"\s*(?:/|\bof\b|\bout of\b)\s*(?P<total>{_NUMBER}){_NO_UNIT}"
_EPOCH_WORD: Final = r"epochs?|ep"
_STEP_WORD: Final = (
    r"(?:(?:global|train(?:ing)?|optimi[sz]er)[_ ]?)?(?:steps?|iterations?|iters?|updates?)|num_updates|batch(?:es)?|it"
)
_KEYED: Final = re.compile(
    rf"(?<![a-z_./%])(?:(?P<epoch>{_EPOCH_WORD})|(?P<step>{_STEP_WORD}))(?:\s*\(\w+\))?['\"]?[\s:=#|\[(]{{0,16}}['\"]?"
    rf"(?P<value>{_NUMBER})(?:{_OF}|{_NO_UNIT})",
    re.IGNORECASE,
)
_OF_TOTAL: Final = re.compile(rf"(?<![\w/.:,-])(?P<value>{_NUMBER}){_OF}")
_LEADING: Final = re.compile(r"\s*(?:\[(?P<boosting>\d+)\](?=\s)|(?P<catboost>\d+):(?=\s+learn))")
_TQDM: Final = re.compile(r"\s*\[\d+:\d\d")
"""After the count of a bar of tqdm: the time that it took."""
_EPOCH_AND_STEP: Final = re.compile(r"\[(?P<epoch>\d+),\s+(?P<step>\d+)\]")
"""PyTorch's tutorials: ``[1,  2000] loss: 2.2``."""

_NOT_AT_TIME: Final = re.compile(
    r"\b(?:best|saved?|saving|checkpoint\w*|resum\w+|restor\w+|load\w*)\b"
    r"|\b(?:per|each|every|at|from|until|after|before|for|last|next|max|min|num|total|warm-?up)\s*$|/\s*$",
    re.IGNORECASE,
)
"""Before a word such as epoch: its number is not that of the epoch under way."""
_VALIDATION: Final = re.compile(
    r"(?<![a-z])(?:val|valid(?:at\w*)?|eval\w*|test(?:ing)?|sanity|dev|predict\w*|inference)(?![a-z_])", re.IGNORECASE
)
_FIELD: Final = re.compile(r"[\w./@-]+['\"]?\s*[:=]\s*['\"]?[-+]?\d[\w.+-]*")
"""``eval_loss: 0.3``: a value beside the count, whose name says nothing about the count."""
_PREPARATION: Final = re.compile(
    r"(?<![a-z])(?:map|filter\w*|load\w*|download\w*|fetch\w*|token\w*|generat\w*|resolv\w*|group\w*|sav\w*|writ\w*"
    r"|creat\w*|extract\w*|pre-?process\w*|prepar\w*|cach\w*|scan\w*|index\w*|read\w*|build\w*|comput\w*|convert\w*"
    r"|cast\w*|flatten\w*|collect\w*|pack\w*|shards?)(?![a-z])",
    re.IGNORECASE,
)
_NO_COUNT: Final = re.compile(
    r"(?<![a-z])(?:acc\w*|correct|precision|recall|f1|top-?\d|mem\w*|gpus?|ranks?|nodes?|workers?|folds?|devices?|free|used"
    r"|ram|disk|eta|remaining|score|loss|lr|seed|trial|eval|speed)\W*$",
    re.IGNORECASE,
)
"""Before a number of a total that is a result, or a resource: ``Accuracy: 9800/10000``."""
_DIGITS: Final = re.compile(r"[-+]?\d[\d.,:eE+-]*%?")
_DECLARED: Final = re.compile(
    r"(?:(?<![a-z])(?:num|max|total|n)[_ ](?:train[_ ])?(?P<epochs>epochs?)"
    r"|(?:total (?:optimization |training |train )?|(?<![a-z])max[_ ]|num_train(?:ing)?_)(?P<steps>steps)"
    r"|(?<![a-z])(?:train|max)[_ ](?P<iterations>iters))"
    rf"['\"]?[\s:=.]{{1,64}}(?P<value>{_NUMBER}){_NO_UNIT}|training for (?P<for>\d+) epochs",
    re.IGNORECASE,
)


class Unit(StrEnum):
    """What a number counts, by the word beside it."""

    EPOCH = "epoch"
    STEP = "step"
    """Or an iteration, an update: of the optimizer."""
    BATCH = "batch"
    """Within an epoch."""
    UNNAMED = "unnamed"
    """A bar, or a number of a total."""


class Use(StrEnum):
    """What is counted, by the label."""

    TRAINING = "training"
    """Or without a word of anything else."""
    VALIDATION = "validation"
    PREPARATION = "preparation"


class Reading(NamedTuple):
    """One number of one line."""

    unit: Unit
    label: str
    """The text before it, numbers as ``#``."""
    value: float
    total: float
    """0: none."""
    use: Use
    bare: bool = False
    """The line says nothing else: no loss, no time."""
    drawn: bool = False
    """It stands in a bar, which counts what is done: from 0 to its total."""


class Declared(NamedTuple):
    """The number of epochs or steps of the whole training, as a line of settings has it."""

    unit: Unit
    total: float


def clean(line: str) -> str:
    """Return at most `MAX_LINE_CHARACTERS` of a line, without escape sequences and other control characters."""
    return _CONTROL.sub("", line[:MAX_LINE_CHARACTERS])


def lines_of(unread: bytes) -> tuple[Sequence[str], bytes]:
    """Return the whole lines of what was read, and the rest; a bar's carriage returns end lines, too."""
    *whole, rest = re.split(rb"[\r\n]+", unread)
    return [one.decode("utf-8", "replace") for one in whole], rest[-MAX_LINE_CHARACTERS:]


def number_of(text: str) -> float:
    """Return ``1,000``, ``1_000``, ``1.5k`` or ``12`` as a number."""
    scale = {"k": 1e3, "m": 1e6, "g": 1e9}.get(text[-1:].lower(), 1.0)
    return float(text.rstrip("kKMG").replace(",", "").replace("_", "")) * scale


def label_of(before: str) -> str:
    """Return what stands before a number as a label: its end, with one space for many and ``#`` for numbers."""
    plain = " ".join(_DIGITS.sub("#", before).split())
    return plain[-_MAX_LABEL_CHARACTERS:].strip()


def declared(line: str) -> Declared | None:
    """Return the whole training's epochs or steps where a clean line is a setting of them."""
    found = _DECLARED.search(line)
    if found is None:
        return None
    total = number_of(found["for"] or found["value"])
    return Declared(Unit.EPOCH if found["for"] or found["epochs"] else Unit.STEP, total) if total >= 1 else None


def readings(line: str) -> tuple[Reading, ...]:
    """Return the numbers of a clean line that may count progress, in the order of the line, at most eight."""
    if not any(map(str.isdigit, line)):
        return ()
    text = _BAR.sub(" ", line)
    in_order = sorted(_found(text), key=lambda one: one[0])
    return tuple(reading for _, reading in in_order[:_MAX_READINGS])


def _found(text: str) -> Iterator[tuple[int, Reading]]:
    """The readings with their places."""
    if (pair := _EPOCH_AND_STEP.search(text)) is not None:
        yield pair.start(), Reading(Unit.EPOCH, "[epoch", float(pair["epoch"]), 0.0, Use.TRAINING)
        yield pair.start() + 1, Reading(Unit.STEP, "[epoch, step", float(pair["step"]), 0.0, Use.TRAINING)
        return
    if (first := _LEADING.match(text)) is not None:
        value = float(first["boosting"] or first["catboost"])
        yield 0, Reading(Unit.STEP, "[#]" if first["boosting"] else "#:", value, 0.0, Use.TRAINING)
        return
    taken: list[tuple[int, int]] = []
    for one in _KEYED.finditer(text):
        reading = _keyed(text, one)
        if reading is not None:
            taken.append(one.span())
            yield one.start(), reading
    for one in _OF_TOTAL.finditer(text):
        if any(start < one.end() and one.start() < end for start, end in taken):
            continue
        value, total = number_of(one["value"]), number_of(one["total"])
        before = text[: one.start()]
        if 2 <= total >= value and not _NO_COUNT.search(before[-24:]):
            yield (
                one.start(),
                Reading(
                    Unit.UNNAMED,
                    label_of(before),
                    value,
                    total,
                    _use(before),
                    drawn=_TQDM.match(text[one.end() :]) is not None,
                ),
            )


def _keyed(text: str, found: re.Match[str]) -> Reading | None:
    value, total = number_of(found["value"]), number_of(found["total"] or "0")
    before = text[: found.start()]
    word = (found["epoch"] or found["step"]).lower()
    unit = Unit.EPOCH if found["epoch"] else Unit.BATCH if word.startswith("batch") else Unit.STEP
    if _NOT_AT_TIME.search(before) or (total and value > total) or (unit is not Unit.EPOCH and value != int(value)):
        return None
    rest = text[found.end() :]
    bare = not any(map(str.isdigit, rest)) and "loss" not in rest.lower()
    label = label_of(text[: found.start("value")])
    drawn = bool(total) and _TQDM.match(rest) is not None
    return Reading(unit, label, value, total, _use(text[: found.start("value")]), bare, drawn)


def _use(before: str) -> Use:
    words = _FIELD.sub(" ", before)
    if _VALIDATION.search(words):
        return Use.VALIDATION
    return Use.PREPARATION if _PREPARATION.search(words) else Use.TRAINING
