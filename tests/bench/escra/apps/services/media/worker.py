"""Does image jobs out of the queue, one after the other: `python3 worker.py`.

Every result carries a JPEG comment that says what was done and to how large a picture, so that answers can be checked.
A result that nobody fetches vanishes after a minute.
"""

from __future__ import annotations

import io
import json
import sys
import time
from typing import Any

import redis
from PIL import Image, ImageFilter, ImageOps

queue = redis.Redis(host="queue", retry_on_timeout=True)
store = redis.Redis(host="store", retry_on_timeout=True)
FILTERS = {
    "blur": ImageFilter.GaussianBlur(3),
    "sharpen": ImageFilter.UnsharpMask(2, 150, 3),
    "median": ImageFilter.MedianFilter(3),
}
TILE = (480, 360)
COLUMNS = 3
_KEPT_S = 60
_BATCH_KEPT_S = 60
_RECONNECT_S = 0.2


def opened(image: int) -> Image.Image:
    """An image of the store, decoded."""
    picture = Image.open(io.BytesIO(store.get(f"image:{image}")))
    picture.load()
    return picture


def written(picture: Image.Image, comment: str, quality: int = 85) -> bytes:
    """As JPEG with a comment."""
    target = io.BytesIO()
    picture.save(target, "JPEG", quality=quality, comment=comment.encode())
    return target.getvalue()


def preview(job: dict[str, Any]) -> bytes:
    picture = opened(job["image"])
    width, height = picture.size
    small = picture.resize((job["width"], job["width"] * height // width), Image.Resampling.LANCZOS)
    return written(small, f"preview {job['image']} {small.width}x{small.height};")


def filtered(job: dict[str, Any]) -> bytes:
    picture = ImageOps.autocontrast(opened(job["image"]).filter(FILTERS[job["name"]]))
    return written(picture, f"filter {job['image']} {job['name']} {picture.width}x{picture.height};")


def tile(job: dict[str, Any]) -> bytes:
    picture = ImageOps.fit(opened(job["image"]), TILE, Image.Resampling.BICUBIC)
    return written(picture, f"tile {job['image']};", 92)


def poster(job: dict[str, Any]) -> bytes:
    """Tiles on one sheet at twice their size, as for print: tens of megabytes while it is made."""
    tiles = [Image.open(io.BytesIO(store.getdel(each))) for each in job["tiles"]]
    rows = -(-len(tiles) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * TILE[0], rows * TILE[1]), "white")
    for number, each in enumerate(tiles):
        sheet.paste(each, (number % COLUMNS * TILE[0], number // COLUMNS * TILE[1]))
    print_size = sheet.resize((2 * sheet.width, 2 * sheet.height), Image.Resampling.BICUBIC)
    small = ImageOps.autocontrast(print_size).resize((960, 960 * sheet.height // sheet.width), Image.Resampling.BOX)
    return written(small, f"poster {len(tiles)} {print_size.width}x{print_size.height};")


KINDS = {"preview": preview, "filter": filtered, "tile": tile, "poster": poster}


def do(job: dict[str, Any]) -> None:
    """One job; whoever waits for it is told that it is done, or that it cannot be."""
    try:
        store.set(job["result"], KINDS[job["kind"]](job), ex=_KEPT_S)
        verdict = "ok"
    except (OSError, TypeError, ValueError, redis.RedisError) as error:
        print(f"{job}: {error!r}", file=sys.stderr)
        verdict = "failed"
    queue.pipeline().rpush(job["done"], verdict).expire(job["done"], _BATCH_KEPT_S).execute()


while True:
    try:
        found = queue.brpop("jobs", timeout=5)
        if found is not None:
            do(json.loads(found[1]))
    except redis.ConnectionError:
        time.sleep(_RECONNECT_S)
