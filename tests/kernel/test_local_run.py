"""The local run's tool on real sandboxes: how it ends, what it keeps, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from schemas.runs import RunEnd, RunProfile
from services.collector.write_ahead_log import read_journal
from tests.support.cgroup_lab import wait_until
from tests.support.local_runs import (
    ROOT,
    SLEEP,
    STUBBORN,
    arguments,
    child_of,
    ended,
    environment_of,
    network_of,
    run,
    running,
    start,
    token_of,
    wait_gone,
)

pytestmark = [pytest.mark.root, pytest.mark.netns, pytest.mark.slow]

HUNGRY = "held = []\nwhile True: held.append(bytearray(4 << 20))"


def stored(out: Path) -> list[RunProfile]:
    """The journal's profiles."""
    profiles = [record for record in read_journal(out) if isinstance(record, RunProfile)]
    assert len(profiles) == len(list(out.glob("profiles/*.json")))
    return profiles


def test_timed_out(tmp_path: Path) -> None:
    done = run([*arguments(tmp_path, "--seconds", "4", "--run", "cut"), "sh", "-c", SLEEP, "--api-key=hidden"])
    result = done.event("result")
    assert done.code == 0, done.stderr
    assert (result["run"], result["end"]) == ("cut", "timed_out")
    assert result["exit_codes"] == [-15, -15, -15]
    (profile,) = stored(tmp_path)
    assert profile.end is RunEnd.TIMED_OUT
    assert [worker.worker for worker in profile.workers] == ["master", "worker-1", "worker-2"]
    assert 3.9 < profile.duration_s < 100
    most = 20 * (profile.duration_s + 1)
    assert 2 <= result["samples"] <= most, "20 in a second; a machine that stands still for seconds takes fewer"
    assert profile.command == ("sh", "-c", SLEEP, "--api-key=***")
    assert profile.load_average is not None
    assert profile.contention is not None
    assert profile.contention.own_cores > 0
    assert not result["published"]
    assert [event["worker"] for event in done.events if event["event"] == "row"] == ["master", "worker-1", "worker-2"]
    samples = [event for event in done.events if event["event"] == "sample"]
    assert [event["sample"] for event in samples][-1] == result["samples"]
    assert {row["worker"] for row in samples[0]["workers"]} == {"master", "worker-1", "worker-2"}


def test_a_command_that_ends_by_itself(tmp_path: Path) -> None:
    done = run([*arguments(tmp_path, "--workers", "2"), "sh", "-c", "sleep 3; echo out; echo err >&2"])
    assert done.code == 0, done.stderr
    (profile,) = stored(tmp_path)
    assert (profile.end, profile.exit_codes) == (RunEnd.FINISHED, (0, 0))
    assert done.event("result")["whole_run"]["duration_s"] == pytest.approx(profile.duration_s)
    logs = Path(done.event("started")["logs"])
    assert (logs / "worker-1.out").read_text() == "out\n"
    assert (logs / "worker-1.err").read_text() == "err\n"


def test_under_ten_samples(tmp_path: Path) -> None:
    done = run([*arguments(tmp_path), "true"])
    assert done.code == 65
    assert "samples of 0.05 s are no profile, 10 are the least" in done.event("error")["message"]
    assert stored(tmp_path) == []


def test_a_worker_that_dies(tmp_path: Path) -> None:
    """The first death ends the run; the others, which wait for it, are stopped."""
    script = 'sleep 3; if [ $RANK = 1 ]; then echo "bad thing" >&2; exit 3; fi; sleep 1000'
    done = run([*arguments(tmp_path), "sh", "-c", script])
    error = done.event("error")
    assert done.code == 65
    assert (error["worker"], error["worker_exit_code"], error["stderr_tail"]) == ("worker-1", 3, ["bad thing"])
    assert "worker-1 ended with exit code 3" in done.stderr
    assert "bad thing" in done.stderr
    (profile,) = stored(tmp_path)
    assert (profile.end, profile.exit_codes) == (RunEnd.FAILED, (-15, 3, -15))


def test_a_worker_that_dies_at_once(tmp_path: Path) -> None:
    done = run([*arguments(tmp_path), sys.executable, "-S", "-c", "import missing_module"])
    error = done.event("error")
    assert done.code == 65
    assert "ended with exit code 1" in error["message"]
    assert "10 are the least" in error["message"]
    assert "No module named 'missing_module'" in error["stderr_tail"][-1]
    assert stored(tmp_path) == []


def test_out_of_memory_is_told_as_such(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", HUNGRY]
    done = run([*arguments(tmp_path, "--workers", "1", "--memory", "48MiB"), *command])
    assert done.code == 65
    assert "master ran out of memory (its limit: 48 MiB)" in done.event("error")["message"]


def test_who_does_not_listen_to_sigterm_is_killed(tmp_path: Path) -> None:
    done = run([*arguments(tmp_path, "--seconds", "6", "--workers", "2", "--grace", "0.5"), "sh", "-c", STUBBORN])
    assert done.code == 0, done.stderr
    assert done.event("result")["exit_codes"] == [-9, -9]


def test_an_interrupt_keeps_what_there_is(tmp_path: Path) -> None:
    with running([*arguments(tmp_path), "sh", "-c", SLEEP]) as (process, first):
        pids = [worker["pid"] for worker in first["workers"]]
        token = token_of(pids[0])
        assert process.stdout is not None
        wait_until(lambda: json.loads(process.stdout.readline())["sample"] >= 12, within_s=60, what="twelve samples")
        process.send_signal(signal.SIGINT)
        done = ended(process)
    assert done.code == 130
    assert done.event("result")["end"] == "interrupted"
    (profile,) = stored(tmp_path)
    assert profile.workers[0].samples >= 12
    wait_gone(token, pids)


def test_whoever_listened_has_gone(tmp_path: Path) -> None:
    """Killed, perhaps: what was recorded until then is kept."""
    with running([*arguments(tmp_path), "sh", "-c", SLEEP]) as (process, first):
        token = token_of(first["workers"][0]["pid"])
        assert process.stdout is not None
        wait_until(lambda: json.loads(process.stdout.readline())["sample"] >= 12, within_s=60, what="twelve samples")
        process.stdout.close()
        assert process.wait(60) == 130
        process.stdout = None
    (profile,) = stored(tmp_path)
    assert profile.end is RunEnd.INTERRUPTED
    wait_gone(token, [])


def test_an_early_interrupt(tmp_path: Path) -> None:
    with running([*arguments(tmp_path, "--interval", "60"), "sh", "-c", SLEEP]) as (process, _):
        process.send_signal(signal.SIGINT)
        done = ended(process)
    assert done.code == 130
    assert "0 samples" in done.event("error")["message"]


def test_a_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    with running([*arguments(tmp_path, "--grace", "40"), "sh", "-c", STUBBORN]) as (process, first):
        logs = Path(first["logs"])
        wait_until(lambda: all((logs / f"{worker['worker']}.out").read_text() for worker in first["workers"]))
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        wait_until(lambda: json.loads(process.stdout.readline())["event"] == "stopping", within_s=60)
        process.send_signal(signal.SIGINT)
        assert ended(process).code == 130


@pytest.mark.parametrize("killed", [False, True])
def test_nothing_is_left(tmp_path: Path, killed: bool) -> None:
    """Nor of what the command has started itself, also where the tool is killed."""
    command = [*arguments(tmp_path, "--workers", "2"), "sh", "-c", "sleep 1000 & sleep 1000 & wait"]
    with running(command) as (process, first):
        shells = [worker["pid"] for worker in first["workers"]]
        token = token_of(shells[0])
        for shell in shells:
            wait_until(child_of(shell), what="the command's children")
        pids = [*shells, *(child_of(shell)() or 0 for shell in shells)]
        process.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
        process.communicate(timeout=120)
    wait_gone(token, pids)


def test_the_workers_surroundings(tmp_path: Path) -> None:
    command = [*arguments(tmp_path, "--cpus", "0.5", "--memory", "256MiB"), "sh", "-c", SLEEP]
    with running(command) as (_, first):
        pids = [worker["pid"] for worker in first["workers"]]
        environments = [environment_of(pid) for pid in pids]
        assert [environment["RANK"] for environment in environments] == ["0", "1", "2"]
        assert {environment["MASTER_ADDR"] for environment in environments} == {first["workers"][0]["address"]}
        assert len({network_of(pid) for pid in [*pids, os.getpid()]}) == 4


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["no-such-program"], "no-such-program: no such program"),
        (["/etc/passwd"], "not executable"),
        ([], "no command"),
    ],
)
def test_commands_that_cannot_be_run(tmp_path: Path, command: list[str], words: str) -> None:
    done = run([*arguments(tmp_path), *command])
    assert done.code == 2
    assert words in done.event("error")["message"]


def test_without_root(tmp_path: Path) -> None:
    """The message says what is needed."""
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *arguments(tmp_path / "mine"), "true"]
    done = run(command)
    assert done.code == 69
    assert "needs root for control groups and network namespaces, this is uid 65534" in done.event("error")["message"]


def test_a_name_counts_once(tmp_path: Path) -> None:
    """A second profile of that name would replace the first one's file, and never be published."""
    command = [*arguments(tmp_path, "--seconds", "4", "--run", "mine"), "sh", "-c", SLEEP]
    assert run(command).code == 0
    again = run(command)
    assert again.code == 2
    assert "holds a run mine already: give this one another --run" in again.event("error")["message"]
    assert len(stored(tmp_path)) == 1


def test_a_directory_in_use(tmp_path: Path) -> None:
    with running([*arguments(tmp_path), "sh", "-c", SLEEP]):
        done = run([*arguments(tmp_path), "true"])
    assert done.code == 69
    assert "another process writes to" in done.event("error")["message"]


@pytest.mark.timeout(720)
def test_a_real_training_job(tmp_path: Path) -> None:
    """An unmodified DDP script finds its peers over gloo, and the bytes sent tell how many steps it made."""
    width, steps = 512, 150
    parameters = 64 * width + width + width * 10 + 10
    script = [sys.executable, str(ROOT / "tests/support/ddp_script.py"), "--steps", str(steps), "--width", str(width)]
    options = ["--parameters", str(parameters), "--batch-size", "32", "--epochs", "1", "--interval", "0.2"]
    process = start([*arguments(tmp_path, *options, "--minutes", "3"), *script, "--pause-s", "0.02"])
    out, err = process.communicate(timeout=220)
    assert process.returncode == 0, err
    (profile,) = stored(tmp_path)
    logs = Path(json.loads(out.splitlines()[0])["logs"])
    assert f"step {steps} " in (logs / "master.out").read_text()
    per_step = 2 * 2 / 3 * 4 * parameters
    for worker in profile.workers:
        sent = float(worker.column("network_out_bytes_per_s").sum()) * profile.interval_s
        # headers, rendezvous and DDP's own first exchanges on top
        assert steps * 0.95 < sent / per_step < steps * 1.2
        assert worker.column("memory_bytes").max() > 50e6
        assert worker.column("cpu_cores").max() > 0
    assert profile.configuration.attributes["steps_per_s"] > 0


COUNTING = "for n in $(seq 1 400); do sleep 0.1; echo epoch $n/400; done"


def test_a_run_that_is_cut_tells_its_rate_by_its_own_words(tmp_path: Path) -> None:
    """An epoch each 0.1 s, 400 in all: after 3 s some 40 s are told for the whole, and what that comes from."""
    done = run([*arguments(tmp_path, "--seconds", "3", "--run", "counting"), "sh", "-c", COUNTING])
    result = done.event("result")
    assert (result["rate"]["unit"], result["rate"]["method"]) == ("epoch", "output")
    # sleep 0.1 takes at least that; a busy machine makes it slower, and the estimate with it
    assert 40 <= result["whole_run"]["duration_s"] < 4_000
    assert not result["whole_run"]["measured"]
    (profile,) = stored(tmp_path)
    assert profile.task.epochs == 400
    assert profile.configuration.attributes["whole_run_s"] == result["whole_run"]["duration_s"]
    assert "by the command's own output" in done.stderr


def test_a_run_without_a_rate_says_what_would_tell_it(tmp_path: Path) -> None:
    done = run([*arguments(tmp_path, "--seconds", "4", "--run", "silent"), "sh", "-c", SLEEP])
    assert done.event("result")["rate"] is None
    assert "no rate of training was found" in done.stderr
    assert "--features features.json" in done.stderr
