"""The animated picture of the live view."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree as ET

from rich.console import Console

from scripts.record_pictures import animated

SVG = "{http://www.w3.org/2000/svg}"
FRAME_S = 1.5


def frames(*texts: str) -> list[str]:
    made = []
    for number, text in enumerate(texts):
        console = Console(record=True, width=40, file=io.StringIO(), force_terminal=True)
        console.print(text, style="bold red" if number % 2 else "green")
        made.append(console.export_svg(title="turnbuckle top", unique_id=f"frame-{number}"))
    return made


def visible(svg: str, time_s: float) -> list[int]:
    """The frames that a browser shows so long after it has loaded the picture, by the rules in its style."""
    whole_s = float(re.findall(r"animation:show (\S+)s step-end infinite", svg)[0])
    shown_share = float(re.findall(r"\{visibility:visible\}([\d.]+)%", svg)[0]) / 100
    delays = {int(n): float(delay) for n, delay in re.findall(r"shown-(\d+)\{animation-delay:(\S+?)s\}", svg)}
    assert all(delay <= 0 for delay in delays.values()), "one that waits would show what it is without animation"
    return [n for n, delay in delays.items() if ((time_s - delay) / whole_s) % 1 < shown_share - 1e-9]


def test_frames_are_shown_one_after_the_other_and_again() -> None:
    svg = animated(frames("first", "second", "third"), FRAME_S)

    assert [visible(svg, time_s) for time_s in (0.1, 1.4, 1.6, 3.1, 4.4, 4.6)] == [[0], [0], [1], [2], [2], [0]]


def test_it_holds_each_frame_whole_and_fetches_nothing() -> None:
    svg = animated(frames("first", "second\nline\nline"), FRAME_S)
    root = ET.fromstring(svg)
    nested = root.findall(f"{SVG}svg")
    ids = [each.get("id") for each in root.iter() if each.get("id")]

    assert ["".join(each.itertext()).count(text) for each, text in zip(nested, ("first", "second"), strict=True)] == [
        1,
        1,
    ]
    assert len(ids) == len(set(ids)), "a frame that took another's clip path would be cut off"
    assert float(root.get("viewBox", "").split()[3]) == max(float(each.get("height", "0")) for each in nested)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg|www\.textualize\.io)|@import|@font-face|<script", svg)
