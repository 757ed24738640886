"""Application (b), the media pipeline: nginx -> an API -> a queue -> four image workers, with a store and a cache.

A poster is a burst: its tiles are jobs for all workers at once, and putting it together takes tens of megabytes for
a moment. A job that a killed worker had is lost, and whoever waits for it gets an error after ten seconds.
"""

from __future__ import annotations

import random

from tests.bench.escra.apps.application import (
    SERVICES_DIRECTORY,
    Application,
    Container,
    Request,
    Site,
    gunicorn,
    nginx,
    redis,
)
from tests.bench.escra.apps.pictures import paint, size

IMAGES = 60
WORKERS = 4
FILTERS = ("blur", "sharpen", "median")
PREVIEW_WIDTHS = (160, 240, 320, 400)
TILE = (480, 360)
COLUMNS = 3
"""As services/media/worker.py has them."""

_FRONT, _FRONT_FILES = nginx("    location / { proxy_pass http://api; }\n", {"api": ("api:8000",)})


class Media(Application):
    """Nine containers."""

    name = "media"
    containers = (
        Container("nginx", _FRONT, _FRONT_FILES),
        Container("api", gunicorn("media.api", threads=64)),
        Container("queue", redis()),
        *(
            Container(f"worker-{number}", ("python3", f"{SERVICES_DIRECTORY}/media/worker.py"))
            for number in range(WORKERS)
        ),
        Container("store", redis()),
        Container("previews", ("memcached", "-u", "memcache", "-m", "32", "-t", "2")),
    )
    entry = "nginx"
    base_rate_rps = 26.0

    def request(self, rng: random.Random, sequence: int) -> Request:
        """65 % previews, 29 % filters, 6 % posters of 6 or 9 images."""
        chosen = rng.random()
        image = rng.randrange(IMAGES)
        if chosen < 0.65:
            return _preview(image, rng.choice(PREVIEW_WIDTHS))
        if chosen < 0.94:
            return _filter(image, rng.choice(FILTERS))
        return _poster([rng.randrange(IMAGES) for _ in range(rng.choice((6, 9)))])

    async def prepare(self, site: Site) -> None:
        """Paint the images and store them."""
        await paint(site, IMAGES)

    async def reset(self, site: Site) -> None:
        """No previews in the cache, no jobs of clients that have gone."""
        await site.ask("previews", 11211, b"flush_all\r\n", 1)
        await site.ask("queue", 6379, b"FLUSHALL\r\n", 1)
        [kept] = await site.ask("store", 6379, b"EXISTS image:0\r\n", 1)
        if kept != b":1":  # the store was killed for memory
            await self.prepare(site)


def _preview(image: int, width: int) -> Request:
    full_width, full_height = size(image)
    expected = f"preview {image} {width}x{width * full_height // full_width};".encode()
    return Request("GET", f"/preview/{image}?width={width}", b"", expected, "preview")


def _filter(image: int, name: str) -> Request:
    width, height = size(image)
    expected = f"filter {image} {name} {width}x{height};".encode()
    return Request("GET", f"/filter/{image}?name={name}", b"", expected, "filter")


def _poster(images: list[int]) -> Request:
    width, height = 2 * COLUMNS * TILE[0], 2 * (len(images) // COLUMNS) * TILE[1]
    expected = f"poster {len(images)} {width}x{height};".encode()
    return Request("GET", f"/poster?images={','.join(map(str, images))}", b"", expected, "poster")
