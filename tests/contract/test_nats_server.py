"""The server that we start ourselves: its ports, its store, its end."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

from schemas.streams import APPS
from services._runtime.bus.embedded_server import EmbeddedNats, NatsServerError, PortTakenError
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from tests.support.bus_lab import node_info, number_of
from tests.support.deadline import until

ROOT = Path(__file__).resolve().parents[2]


async def test_monitoring_and_ports() -> None:
    """A port that is taken is named; a monitoring port can be chosen by the server."""
    async with EmbeddedNats() as first:
        with pytest.raises(PortTakenError, match=str(first.port)):
            await EmbeddedNats(port=first.port).start()
    with pytest.raises(NatsServerError, match="listen"):
        await EmbeddedNats(host="203.0.113.1", port=4222).start()

    async with EmbeddedNats(monitor_port=0) as other:
        assert other.monitor_port
        reader, writer = await asyncio.open_connection("127.0.0.1", other.monitor_port)
        writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert b"200 OK" in await reader.read()
        writer.close()
        await writer.wait_closed()
        assert other.pid
    assert not other.running


async def test_server_dies_with_its_parent() -> None:
    """Also where the parent is killed: nothing is left behind that holds the port."""
    program = (
        "import asyncio, sys\n"
        "from services._runtime.bus.embedded_server import EmbeddedNats\n"
        "async def main():\n"
        "    server = await EmbeddedNats().start()\n"
        "    print(server.pid, server.log_path.parent, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid, _, directory = (await asyncio.wait_for(parent.stdout.readline(), 20)).decode().strip().partition(" ")
    assert _alive(int(pid))

    parent.kill()
    await parent.wait()

    await until(lambda: not _alive(int(pid)))
    shutil.rmtree(directory)


def _alive(pid: int) -> bool:
    """Neither gone nor a zombie that its new parent has not reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_bad_store_directory(tmp_path: Path) -> None:
    """The server's own words are in the error."""
    blocked = tmp_path / "file"
    blocked.write_text("")

    with pytest.raises(NatsServerError, match=r"ended at once: .+"):
        await EmbeddedNats(store_directory=blocked / "store").start()


async def test_store_directory_is_kept(tmp_path: Path) -> None:
    """What was stored in a given directory is there after stop and start."""
    for turn in (1, 2):
        async with EmbeddedNats(store_directory=tmp_path) as server:
            bus = await NatsBus.connect(BusOptions(servers=(server.url,), connect_deadline_s=10.0))
            bucket = bus.bucket(APPS)
            if turn == 1:
                await bucket.put("a", node_info(5))
            entry = await bucket.get("a")
            assert entry is not None
            assert number_of(entry.message) == 5
            await bus.close(2)
