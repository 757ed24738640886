"""Files that outlive a process: after kill -9, and with two processes at once. The journal has a file of its own."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
from pathlib import Path

from services._runtime.bus.name_registration import Holder
from services.agent.memory.reserve_store import FileReserveStore
from services.reconciler.audit_checkpoint import RECORD_BYTES, Checkpoint, CheckpointFile


def test_the_token_survives_a_kill(tmp_path: Path) -> None:
    source = (
        "import os, sys; from pathlib import Path; from services._runtime.bus.name_registration import Holder\n"
        "print(Holder(Path(sys.argv[1]), 'agent', 'n1').token, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", source, str(tmp_path)], capture_output=True, text=True, check=False)

    assert done.returncode == -9
    assert Holder(tmp_path, "agent", "n1").token == done.stdout.strip()


def test_a_mark_outlives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "x.audit"
    code = (
        "import os, pathlib, signal, sys\n"
        "from services.reconciler.audit_checkpoint import CheckpointFile\n"
        "mark = CheckpointFile(pathlib.Path(sys.argv[1]), 5)\n"
        "mark.begin(3); mark.acknowledge(2); mark.begin(4)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    checkpoint = CheckpointFile(path, 6)
    assert checkpoint.previous == Checkpoint(incarnation=5, pass_id=4, acknowledged_pass_id=2)
    checkpoint.begin(1)
    checkpoint.acknowledge(1)
    checkpoint.close()
    assert path.stat().st_size == RECORD_BYTES, "bounded"
    again = CheckpointFile(path, 7)
    assert again.previous == Checkpoint(6, 1, 1)
    assert not again.previous.gap
    again.close()


def spend_often(file: Path, times: int, results: multiprocessing.Queue[int]) -> None:
    book = FileReserveStore(file)
    spent = 0
    for _ in range(times):
        spent += book.spend("shop", 3)
    results.put(spent)


def test_two_processes_never_spend_the_same_twice(tmp_path: Path) -> None:
    file = tmp_path / "reserves.json"
    context = multiprocessing.get_context("fork")
    FileReserveStore(file).give("shop", 1000)
    results = context.Queue()
    spenders = [context.Process(target=spend_often, args=(file, 300, results)) for _ in range(2)]
    for spender in spenders:
        spender.start()
    spent = sum(results.get(timeout=60) for _ in spenders)
    for spender in spenders:
        spender.join()
    assert FileReserveStore(file).read()["shop"].used_bytes == spent
    assert 0 < spent <= 1000
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".")] == []
