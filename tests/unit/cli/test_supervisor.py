"""Children of `turnbuckle up`: ready, dead, stopped in reverse order."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from services._runtime.command.errors import ServiceDiedError
from services._runtime.exit_code import ExitCode
from services.cli.toolkit.supervisor import Supervisor

SERVE = """
import http.server, os, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(os.environ["TURNBUCKLE_NATS_URL"].encode())
    def log_message(self, *_): pass
def stop(*_):
    open(os.environ["ENDED"], "a").write(sys.argv[1] + " "); os._exit(0)
signal.signal(signal.SIGTERM, stop)
http.server.HTTPServer(("127.0.0.1", int(os.environ["TURNBUCKLE_HEALTH_PORT"])), Handler).serve_forever()
"""


def serving(name: str) -> list[str]:
    return [sys.executable, "-c", SERVE, name]


async def test_services_are_started_and_stopped_in_reverse_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_URL", "nats://elsewhere")
    monkeypatch.setenv("TURNBUCKLE_NATS_CONTEXT", "elsewhere")
    ended = tmp_path / "ended"
    supervisor = Supervisor(tmp_path, "nats://here", serving)
    first = await supervisor.start("allocator", {"ENDED": str(ended)})
    await supervisor.start("agent", {"ENDED": str(ended)})

    assert first.fetch("/metrics") == (200, "nats://here")
    supervisor.check()

    await supervisor.stop_all()

    assert ended.read_text() == "agent allocator "


@pytest.mark.parametrize(("code", "expected"), [(3, ExitCode.INTERNAL), (78, ExitCode.BAD_CONFIG), (69, 69)])
async def test_a_service_that_ends_is_shown_with_its_log(tmp_path: Path, code: int, expected: int) -> None:
    dying = f"import sys; print('line 1'); print('the reason'); sys.exit({code})"
    supervisor = Supervisor(tmp_path, "nats://here", lambda _: [sys.executable, "-c", dying])

    with pytest.raises(ServiceDiedError, match="the reason") as caught:
        await supervisor.start("agent", {})

    assert caught.value.exit_code == expected
    assert str(tmp_path / "agent.log") in str(caught.value)
    await supervisor.stop_all()


async def test_a_service_that_dies_later_is_noticed(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, "nats://here", serving)
    child = await supervisor.start("agent", {"ENDED": str(tmp_path / "ended")})
    child.process.kill()
    child.process.wait()

    with pytest.raises(ServiceDiedError, match="signal 9"):
        supervisor.check()
    await supervisor.stop_all()


async def test_a_service_that_is_not_ready_in_time_is_given_up(tmp_path: Path) -> None:
    """As `turnbuckle up --ready-timeout` says; the end of its log is shown."""
    silent = "import signal; print('still loading', flush=True); signal.pause()"
    supervisor = Supervisor(tmp_path, "nats://here", lambda _: [sys.executable, "-c", silent], ready_timeout_s=0.2)

    with pytest.raises(ServiceDiedError, match=r"agent was not ready within 0\.2 s: it does not answer"):
        await supervisor.start("agent", {})

    await supervisor.stop_all()


async def test_of_several_processes_of_a_service_one_may_end(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, "nats://here", serving)
    environment = {"ENDED": str(tmp_path / "ended")}
    first, second = [await supervisor.start("allocator", environment) for _ in range(2)]

    assert (first.name, second.name, second.log_file.name) == ("allocator", "allocator-2", "allocator-2.log")
    assert supervisor.check() == []

    first.process.kill()
    first.process.wait()
    (said,) = supervisor.check()

    assert said.startswith("allocator has ended (signal 9), the others take over")
    assert supervisor.check() == []

    second.process.kill()
    second.process.wait()

    with pytest.raises(ServiceDiedError, match=r"allocator-2 has ended \(signal 9\)"):
        supervisor.check()
    await supervisor.stop_all()


async def test_a_process_with_a_name_of_its_own_is_no_replica(tmp_path: Path) -> None:
    """As the runners of several nodes: no other has its workers."""
    supervisor = Supervisor(tmp_path, "nats://here", serving)
    environment = {"ENDED": str(tmp_path / "ended")}
    first, _ = [await supervisor.start("runner", environment, f"runner-n{number}") for number in (1, 2)]

    assert (first.name, first.log_file.name) == ("runner-n1", "runner-n1.log")

    first.process.kill()
    first.process.wait()

    with pytest.raises(ServiceDiedError, match=r"runner-n1 has ended \(signal 9\)"):
        supervisor.check()
    await supervisor.stop_all()


async def test_a_runner_can_end_its_workers_also_where_all_is_to_end_at_once(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    supervisor = Supervisor(tmp_path, "nats://here", serving)
    allocator = await supervisor.start("allocator", {"ENDED": str(ended)})
    runner = await supervisor.start("runner", {"ENDED": str(ended)}, "runner-n1")
    supervisor.kill_all()

    assert (allocator.process.wait(60), runner.process.wait(60)) == (-9, 0)
    assert ended.read_text() == "runner "


async def test_a_refusal_to_start_is_told_in_the_services_own_words(tmp_path: Path) -> None:
    lines = [
        {"event": "starting", "level": "info"},
        {"event": "start_failed", "level": "error", "error": "managed by another agent (pid 7): stop it"},
        {"event": "stopped", "clean": True},
    ]
    dying = f"import sys; print({chr(10).join(json.dumps(line) for line in lines)!r}); sys.exit(78)"
    supervisor = Supervisor(tmp_path, "nats://here", lambda _: [sys.executable, "-c", dying])

    with pytest.raises(ServiceDiedError) as caught:
        await supervisor.start("agent", {})

    assert str(caught.value) == "the agent does not start: managed by another agent (pid 7): stop it"
    assert caught.value.exit_code == ExitCode.BAD_CONFIG
    await supervisor.stop_all()
