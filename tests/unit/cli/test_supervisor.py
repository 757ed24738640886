"""Children of `turnbuckle up`: ready, dead, stopped in reverse order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from services.cli.failure import ExitCode, ServiceDiedError
from services.cli.supervisor import Supervisor

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
