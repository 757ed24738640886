"""Records the README's pictures from a real run: the live view as animated SVG and limit against usage as PNG.

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
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from schemas.streams import LEASES
from services._runtime.bus.options import BusOptions
from services._runtime.command.connection import connected
from services.cli.apps.live_view import render
from services.cli.apps.subscriptions import members_watcher, subscribe_sinks
from services.cli.apps.view_model import ViewModel

IMAGES: Final = Path(__file__).parent.parent / "docs" / "images"
RUN_S: Final = 45
FRAMES: Final = 20
FRAME_S: Final = 1.2
"""Of the recording, which begins again after the last frame."""
COLUMNS: Final = 150
PORT: Final = 14_222


async def _watch() -> list[str]:
    """Frames of the live view, from the demo's start on."""
    state = ViewModel()
    frames: list[str] = []
    async with connected(BusOptions(servers=(f"nats://127.0.0.1:{PORT}",))) as bus:
        await subscribe_sinks(bus, lambda: (state,), "demo")
        async with bus.bucket(LEASES).watch(members_watcher(state)):
            while len(frames) < FRAMES:
                await asyncio.sleep(FRAME_S)
                frames.append(_frame(state, len(frames)))
    return frames


def _frame(state: ViewModel, number: int) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(render(state, only="demo", columns=COLUMNS))
    return console.export_svg(title="turnbuckle top", unique_id=f"frame-{number}")


def animated(frames: Sequence[str], frame_s: float) -> str:
    """One SVG that shows SVGs of rich in turn, each for so many seconds, without script or anything fetched.

    Where nothing is animated (reduced motion, a printed page) the last one is shown.
    """
    # Fonts would be fetched from elsewhere: any monospaced one does.
    plain = [re.sub(r"@font-face \{.*?\}|^\s+", "", frame, flags=re.DOTALL | re.MULTILINE) for frame in frames]
    sizes = [[float(each) for each in re.findall(r'viewBox="0 0 (\S+) (\S+)"', frame)[0]] for frame in plain]
    width, height = (max(column) for column in zip(*sizes, strict=True))
    count, whole_s = len(plain), len(plain) * frame_s
    # Delays are negative: all animations are under way from the beginning, so that never two frames are visible.
    delays = "".join(f".shown-{n}{{animation-delay:{(n - count) * frame_s:g}s}}" for n in range(count))
    style = (
        f".shown{{visibility:hidden;animation:show {whole_s:g}s step-end infinite}}"
        f".shown-{count - 1}{{visibility:visible}}{delays}"
        f"@keyframes show{{0%{{visibility:visible}}{100 / count:g}%{{visibility:hidden}}}}"
        "@media (prefers-reduced-motion:reduce){.shown{animation:none}}"
    )
    groups = (
        frame.replace('<svg class="rich-terminal"', f'<svg class="shown shown-{n}" width="{w:g}" height="{h:g}"')
        for n, (frame, (w, h)) in enumerate(zip(plain, sizes, strict=True))
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"><style>{style}</style>'
    return "\n".join((head, *groups, "</svg>\n"))


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
            frames = asyncio.run(_wait_and_watch())
            demo.wait()
        shutil.copyfile(Path(store) / "demo.png", IMAGES / "demo.png")
    (IMAGES / "live-view.svg").write_text(animated(frames, FRAME_S), encoding="utf-8")
    return 0


async def _wait_and_watch() -> list[str]:
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
