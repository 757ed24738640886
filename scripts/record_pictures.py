"""Records the README's pictures from a real run: the live view as SVG and limit against usage as PNG.

``python -m scripts.record_pictures`` runs the demo for 45 s on this machine and writes docs/images.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from schemas.streams import LEASES
from services._runtime.bus.options import BusOptions
from services._runtime.command.connection import connected
from services.cli.apps.live_view import render
from services.cli.apps.subscriptions import lease_watcher, subscribe_sinks
from services.cli.apps.view_model import ViewModel

IMAGES: Final = Path(__file__).parent.parent / "docs" / "images"
RUN_S: Final = 45
WATCH_S: Final = 24
COLUMNS: Final = 150
PORT: Final = 14_222


async def _watch() -> ViewModel:
    """Follow the demo long enough to fill the sparklines."""
    state = ViewModel()
    async with connected(BusOptions(servers=(f"nats://127.0.0.1:{PORT}",))) as bus:
        await subscribe_sinks(bus, lambda: (state,), "demo")
        async with bus.bucket(LEASES).watch(lease_watcher(state)):
            await asyncio.sleep(WATCH_S)
    return state


def main() -> int:
    """Run the demo, look at it meanwhile, keep both pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as store:
        command = [
            "turnbuckle",
            "up",
            "--demo",
            "--no-live",
            "--for",
            str(RUN_S),
            "--port",
            str(PORT),
            "--store",
            store,
        ]
        with subprocess.Popen([str(Path(sys.executable).parent / command[0]), *command[1:]]) as demo:  # noqa: S603 - ours
            state = asyncio.run(_wait_and_watch())
            demo.wait()
        shutil.copyfile(Path(store) / "demo.png", IMAGES / "demo.png")
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(render(state, only="demo", columns=COLUMNS))
    # The picture must not fetch fonts from elsewhere: any monospaced one does.
    svg = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="turnbuckle top"), flags=re.DOTALL)
    (IMAGES / "live-view.svg").write_text(svg, encoding="utf-8")
    return 0


async def _wait_and_watch() -> ViewModel:
    async with asyncio.timeout(RUN_S):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", PORT)
                writer.close()
                break
            await asyncio.sleep(0.2)
    return await _watch()


if __name__ == "__main__":
    sys.exit(main())
