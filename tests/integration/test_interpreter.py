"""What a directory holds, and what PYTHONPATH names, decides nothing of what our processes import."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from services._runtime.install_hint import install_extra, package_missing
from services._runtime.service.interpreter import installed_programs, installed_services, isolated_command
from services.cli.command_table import COMMANDS
from services.cli.toolkit.supervisor import free_port
from tests.support.deadline import until

ROOT = Path(__file__).parents[2]
ENTRY = [sys.executable, "-P", "-c", "from services._runtime.service.entry import main; main()"]
"""As the installed script, where its own directory is not searched."""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of somebody's: an empty ``services``, a package ``schemas``, a file named as a library of ours."""
    (tmp_path / "services").mkdir()
    (tmp_path / "schemas").mkdir()
    for name in ("schemas/__init__.py", "structlog.py"):
        (tmp_path / name).write_text(f"raise SystemExit('{name} of the directory')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ended(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNBUCKLE_", "NATS_"))}
    return subprocess.run(command, env=kept | environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("search", ["", "."])
@pytest.mark.parametrize("package", [False, True])
def test_neither_the_directory_nor_pythonpath_is_imported(search: str, package: bool) -> None:
    if package:
        Path("services/__init__.py").write_text("raise SystemExit('services of the directory')")

    done = ended(isolated_command("services.allocator", "--version"), PYTHONPATH=search)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("turnbuckle-allocator ")


def test_the_environment_reaches_the_users_programs(tmp_path: Path) -> None:
    """Only our own interpreter does not look at PYTHONPATH: `turnbuckle profile -- python train.py` has to."""
    seen = "import os; print(os.environ['PYTHONPATH'])"
    command = isolated_command("timeit", "-n", "1", "-r", "1", seen)
    assert ended(command, PYTHONPATH=str(tmp_path)).stdout.startswith(f"{tmp_path}\n")


def test_what_an_image_sets_stays_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    assert "-u" in isolated_command("services.agent")


def test_a_directory_that_was_removed_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert "-P" in isolated_command("services.agent")


def test_services_are_found_with_a_line_each() -> None:
    found = installed_services()

    assert found.keys() >= {"agent", "allocator", "reconciler", "fastpath", "collector", "advisor"}
    assert found["fastpath"].module == "services.fastpath"
    assert all(20 < len(service.summary) <= 110 for service in found.values())
    assert "worker" not in found, "torchrun starts it: it needs no unit, image or settings"
    assert installed_programs()["trainer-worker"].module == "services.trainer.worker"
    assert all(service.summary.lower().startswith(("the " + name)[:7]) for name, service in found.items())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
async def test_the_service_takes_the_process_over(hostile: Path, number: int, code: int) -> None:
    """The pid that was started is the service's (systemd, process 1 of a container): so are signals and its end."""
    environment = os.environ | {"TURNBUCKLE_NATS_URL": f"nats://127.0.0.1:{free_port()}", "PYTHONPATH": ""}
    with (hostile / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*ENTRY, "run", "allocator", env=environment, stderr=log)
    try:
        command = Path(f"/proc/{process.pid}/cmdline")
        await until(lambda: b"-m\0services.allocator" in command.read_bytes())
        await until(lambda: (hostile / "log").stat().st_size > 0)
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), 60) == code, (hostile / "log").read_text()
    finally:
        with suppress(ProcessLookupError):
            process.kill()


def test_exit_codes_are_the_services() -> None:
    done = ended([*ENTRY, "run", "allocator"], TURNBUCKLE_NATS_URL="nats://127.0.0.1:1", TURNBUCKLE_LOG_LEVEL="loud")

    assert done.returncode == 78
    assert "TURNBUCKLE_LOG_LEVEL" in done.stderr


def test_the_command_as_a_module_does_the_same() -> None:
    done = ended([sys.executable, "-m", "services.cli", "run", "allocator", "--version"])

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("turnbuckle-allocator ")


def test_an_unknown_service_is_a_usage_error() -> None:
    done = ended([*ENTRY, "run", "agnet"])

    assert done.returncode == 2
    assert "agent" in done.stderr


WITHOUT_TYPER = """
import sys
sys.modules["typer"] = None
from services._runtime.service.entry import main
main()
"""
"""A host or an image with services only."""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("run", "allocator", "--version"), 0, "turnbuckle-allocator"),
        (("run", "--help"), 0, "allocator"),
        (("run", "agnet"), 2, "there is no service 'agnet'"),
        (("run",), 2, "usage"),
        (("top",), 69, "typer is not installed: pip install typer, or all of the extra: pip install"),
    ],
)
def test_services_need_no_typer(words: tuple[str, ...], code: int, said: str) -> None:
    done = ended([sys.executable, "-c", WITHOUT_TYPER, *words])

    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_operator_without_kopf_says_so_in_a_sentence() -> None:
    without = (
        "import runpy, sys; sys.modules['kopf'] = None; runpy.run_module('services.kubeoperator', run_name='__main__')"
    )

    done = ended([sys.executable, "-c", without])

    assert (done.returncode, done.stdout) == (69, "")
    hint = f"kopf is not installed: pip install kopf, or all of the extra: {install_extra('kubeoperator')}"
    assert done.stderr == f"turnbuckle run kubeoperator: {hint}\n"


def test_a_hint_names_what_is_missing_and_installs_no_name_of_ours() -> None:
    assert package_missing("duckdb", "collector").startswith("duckdb is not installed: pip install duckdb, or")
    assert package_missing("grpc._channel", "kubernetes").startswith("grpcio is not installed")
    assert package_missing("unheard.of", "cli") == f"unheard.of is not installed: {install_extra('cli')}"


def test_no_text_installs_turnbuckle_by_name() -> None:
    """It is on no index: whoever registered the name there would be root on the hosts of those who follow."""
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "compose").rglob("*")]
    files += [*(ROOT / "services").rglob("*.py"), *(ROOT / "services").rglob("*.md")]

    texts = {path: path.read_text(encoding="utf-8", errors="ignore") for path in files if path.is_file()}
    assert [path for path, text in texts.items() if "install turnbuckle" in text or "'turnbuckle[" in text] == []


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_list_of_commands_needs_none_of_them(option: str) -> None:
    """So it is there at once: neither the bus, nor contracts, nor arrays, nor a command's own module is imported."""
    code = (
        "import sys; from services.cli.main import app\n"
        f"try: app([{option!r}])\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    loaded = set(done.stderr.split())
    assert "typer" in loaded
    assert done.stdout
    assert (
        loaded & {"numpy", "pydantic", "nats", "asyncio", "schemas", "docker", "yaml", "pyroute2", "matplotlib"}
        == set()
    )
    assert loaded & {entry.module for entry in COMMANDS} == set()


def test_a_training_is_found_where_others_have_modules_of_our_names(tmp_path: Path) -> None:
    """In a user's directory, as the advisor itself (``-P``): the worker begins, and says that it learned nothing."""
    (tmp_path / "schemas.py").write_text("raise SystemExit('not ours')")
    code = (
        "import asyncio\n"
        "from services.advisor.ports import TrainingSet\n"
        "from services.advisor.training import TrainingProcess\n"
        "asyncio.run(TrainingProcess(60).train(TrainingSet((), (), 'linear', 0, 'hash')))"
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.stderr.splitlines()[-1].endswith(
        "TrainingFailedError: 0 finished jobs are known: at least 8 are needed to learn from"
    )
