"""Application (e), short functions: nginx starts a process per request in one of five containers (CGI by fcgiwrap).

The thesis' ImageProcess (2.6.6.1): read an image from a data base, process its metadata, make a thumbnail, write that
back. As on a serverless platform with warm containers, the container stays and the function's process is new each time.
"""

from __future__ import annotations

import asyncio
import json
import random

from tests.bench.escra.apps.application import SERVICES_DIRECTORY, Application, Container, Request, Site, nginx, redis
from tests.bench.escra.apps.pictures import paint, size

IMAGES = 60
WORKERS = 5
_AT_ONCE = 4
_SCRIPT = f"{SERVICES_DIRECTORY}/functions/image.cgi"

_FRONT, _FRONT_FILES = nginx(
    "    location / {\n"
    "      fastcgi_pass functions;\n"
    f"      fastcgi_param SCRIPT_FILENAME {_SCRIPT};\n"
    "      fastcgi_param SCRIPT_NAME $uri;\n"
    "      fastcgi_param QUERY_STRING $query_string;\n"
    "      fastcgi_param REQUEST_METHOD $request_method;\n"
    "      fastcgi_read_timeout 60s;\n"
    "    }\n",
    {"functions": tuple(f"function-{number}:9000" for number in range(WORKERS))},
)


class Functions(Application):
    """Seven containers."""

    name = "functions"
    containers = (
        Container("nginx", _FRONT, _FRONT_FILES),
        *(
            Container(f"function-{number}", ("fcgiwrap", "-f", "-c", str(_AT_ONCE), "-s", "tcp:0.0.0.0:9000"))
            for number in range(WORKERS)
        ),
        Container("store", redis()),
    )
    entry = "nginx"
    base_rate_rps = 11.0

    def request(self, rng: random.Random, sequence: int) -> Request:
        """A third asks for metadata only, two thirds process an image."""
        image = rng.randrange(IMAGES)
        width_height = list(size(image))
        expected = f'"image": {image}, "size": {json.dumps(width_height)}'.encode()
        kind = "metadata" if rng.random() < 1 / 3 else "process"
        return Request("GET", f"/{kind}?image={image}", b"", expected, kind)

    def check(self, request: Request, status: int, body: bytes) -> bool:
        """The right image, and where one was asked for its thumbnail: all are four to three, so 160 to 120 pixels."""
        return super().check(request, status, body) and (
            request.kind != "process" or b'"thumbnail": [160, 120]' in body
        )

    async def prepare(self, site: Site) -> None:
        """Paint the images and store them."""
        await paint(site, IMAGES)

    async def reset(self, site: Site) -> None:
        """Thumbnails need not go: they are as large at every run. Paint again if the store was killed for memory.

        fcgiwrap's processes are new: where functions were killed for memory, some of them spin for ever (seen).
        """
        everything = ("sh", "-c", "kill -9 -1 || true")  # but the first process, which starts the others again
        await asyncio.gather(*(site.execute(f"function-{number}", *everything) for number in range(WORKERS)))
        [kept] = await site.ask("store", 6379, b"EXISTS image:0\r\n", 1)
        if kept != b":1":
            await self.prepare(site)
