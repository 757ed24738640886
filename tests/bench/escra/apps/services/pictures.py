"""Photographs without a camera: seeded pictures with gradients, shapes and grain, stored as JPEG.

`python3 pictures.py HOST COUNT` writes image:0, image:1, ... into the Redis server of that name.
"""

from __future__ import annotations

import io
import sys

import numpy as np
import redis
from PIL import Image, ImageDraw, ImageFilter

SIZES = ((640, 480), (800, 600), (960, 720), (1024, 768))
"""Of image number n: the sizes take turns."""


def picture(number: int) -> bytes:
    """One JPEG, the same at every call."""
    rng = np.random.default_rng(number)
    width, height = SIZES[number % len(SIZES)]
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows / rng.uniform(20, 90) + columns / rng.uniform(20, 90) + rng.uniform(0, 6)) for _ in range(3)]
    pixels = np.stack(waves, axis=2) * 80 + 128 + rng.normal(0, 6, (height, width, 3))
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8), "RGB")
    draw = ImageDraw.Draw(image)
    for _ in range(24):
        left, top, size = rng.integers(0, width), rng.integers(0, height), rng.integers(10, 120)
        colour = tuple(int(each) for each in rng.integers(0, 256, 3))
        draw.ellipse((int(left), int(top), int(left + size), int(top + size)), fill=colour)
    written = io.BytesIO()
    image.filter(ImageFilter.SMOOTH).save(written, "JPEG", quality=88)
    return written.getvalue()


def main() -> None:
    """Fill a store; the exit status is 0 if all images are in it."""
    store = redis.Redis(host=sys.argv[1])
    for number in range(int(sys.argv[2])):
        if not store.exists(f"image:{number}"):
            store.set(f"image:{number}", picture(number))
    sys.exit(not all(store.exists(f"image:{number}") for number in range(int(sys.argv[2]))))


if __name__ == "__main__":
    main()
