"""What trainings say, and who says it: messages, and commands that send them as a job does."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from schemas.codec import encode
from schemas.message import Message
from schemas.trainings import STEP_COLUMNS, StepBatch, TrainingChange, TrainingEvent
from tests.support.runner_lab import python
from tests.support.trainer_plans import plan_of

_SAY: Final = """
import os, socket, sys, time
path = os.environ["TURNBUCKLE_TRAINING_SOCKET"]
directory = os.open(os.path.dirname(path), os.O_PATH)
said = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for text in sys.argv[1:]:
    if text.startswith("/"):
        while not os.path.exists(text): time.sleep(0.01)
        continue
    data = b"\\xff" * int(text[1:]) if text.startswith("=") else bytes.fromhex(text)
    while True:
        try:
            said.sendto(data, f"/proc/self/fd/{directory}/{os.path.basename(path)}")
            break
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.01)
"""


def saying(*said: Message | bytes | int | Path) -> tuple[str, ...]:
    """A job's command: send these one after another; a number: so many bytes; a path: wait for the file."""
    return (*python(_SAY), *map(_word, said))


def _word(said: Message | bytes | int | Path) -> str:
    match said:
        case Path():
            return str(said)
        case int():
            return f"={said}"
        case bytes():
            return said.hex()
        case _:
            return encode(said).hex()


def steps(**changes: Any) -> StepBatch:
    """Two steps of rank 0 of job ``j``."""
    fields: dict[str, Any] = {"job": "j", "node": "elsewhere", "training": "t", "rank": 0, "time_ns": 1}
    columns = dict.fromkeys(STEP_COLUMNS, (1_000, 2_000)) | {"step": (0, 1)}
    return StepBatch.model_validate(fields | columns | changes)


def event(change: TrainingChange = TrainingChange.STARTED, **changes: Any) -> TrainingEvent:
    """Of job ``j``; a start has a plan for two ranks."""
    fields: dict[str, Any] = {"job": "j", "node": "elsewhere", "training": "t", "sequence": 0, "time_ns": 1}
    if change is TrainingChange.STARTED:
        fields["plan"] = plan_of([6, 2], [2, 1], [3, 1])
    return TrainingEvent.model_validate(fields | {"change": change} | changes)
