"""How a rank ends: what the user's code registered runs, and the interpreter is not finalized under gloo's threads."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import atexit, sys, threading
from services.trainer.worker.command import end

class Held:
    def __del__(self):
        print("finalized")

held, go = Held(), threading.Event()
atexit.register(print, "registered")
threading.Thread(target=lambda: (go.wait(), print("thread"))).start()
go.set()
end(int(sys.argv[1]))
"""


def ended(code: int) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(code)], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout.split()


def test_threads_and_what_is_registered_are_waited_for_and_nothing_is_finalized() -> None:
    assert ended(0) == (0, ["thread", "registered"])


def test_after_a_failure_nothing_is_waited_for() -> None:
    code, printed = ended(75)

    assert code == 75
    assert "registered" not in printed
