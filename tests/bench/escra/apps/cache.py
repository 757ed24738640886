"""Application (c), the cache: nginx -> two readers -> four Redis shards whose data grow, an origin, and memcached.

Most reads are of keys that are there from the start. The others are of keys that mostly nobody has asked for before,
and every such miss makes a shard larger by 64 to 256 KiB: at the base rate by some 8 MB/s together.
"""

from __future__ import annotations

import random
import zlib

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

SHARDS = 4
BASE_KEYS = 1000
"""As services/cache/reports.py has them."""
NEW_KEYS = 100_000
USERS = 1000
_DIGEST_KEYS = 16
_REDIS_PORT = 6379

_FRONT, _FRONT_FILES = nginx("    location / { proxy_pass http://api; }\n", {"api": ("api-1:8000", "api-2:8000")})


class Cache(Application):
    """Nine containers, most of whose memory is Redis'."""

    name = "cache"
    containers = (
        Container("nginx", _FRONT, _FRONT_FILES),
        Container("api-1", gunicorn("cache.api", threads=12)),
        Container("api-2", gunicorn("cache.api", threads=12)),
        Container("origin", gunicorn("cache.origin")),
        *(
            Container(f"cache-{number}", redis("--databases", "2", "--jemalloc-bg-thread", "no"))
            for number in range(SHARDS)
        ),
        Container("sessions", ("memcached", "-u", "memcache", "-m", "64", "-t", "2")),
    )
    entry = "nginx"
    base_rate_rps = 360.0

    def request(self, rng: random.Random, sequence: int) -> Request:
        """58 % known objects, 14 % mostly never read before, 14 % sums of 16 objects, 14 % notes of 1 to 4 KiB."""
        chosen = rng.random()
        user = f"u{rng.randrange(USERS)}"
        if chosen < 0.58:
            return _object(f"b{int(BASE_KEYS * rng.random() ** 2)}", user, "known")
        if chosen < 0.72:
            return _object(f"n{rng.randrange(NEW_KEYS)}", user, "new")
        if chosen < 0.86:
            return _digest([f"b{rng.randrange(BASE_KEYS)}" for _ in range(_DIGEST_KEYS)])
        return _note(user, sequence, rng.randbytes(512 + rng.randrange(1536)).hex().encode())

    async def prepare(self, site: Site) -> None:
        """Fill the shards with the base keys."""
        kept = await site.execute("origin", "python3", f"{SERVICES_DIRECTORY}/cache/fill.py")
        if int(kept) != BASE_KEYS:
            raise RuntimeError(f"{kept.strip()} of {BASE_KEYS} base keys are in the cache")

    async def reset(self, site: Site) -> None:
        """Only the base keys are in the cache again, all of them, and freed memory is the kernel's."""
        found = 0
        for number in range(SHARDS):
            lines = b"SELECT 1\r\nFLUSHDB SYNC\r\nSELECT 0\r\nMEMORY PURGE\r\nDBSIZE\r\n"
            answers = await site.ask(f"cache-{number}", _REDIS_PORT, lines, 5)
            found += int(answers[-1].removeprefix(b":"))
        await site.ask("sessions", 11211, b"flush_all\r\n", 1)
        if found != BASE_KEYS:  # a shard was killed for memory and has lost its keys
            await self.prepare(site)


def _object(key: str, user: str, kind: str) -> Request:
    return Request("GET", f"/object/{key}?user={user}", b"", f"object {key} rows ".encode(), kind)


def _digest(keys: list[str]) -> Request:
    expected = f"object {keys[-1]} rows ".encode()
    return Request("GET", f"/digest?keys={','.join(keys)}", b"", expected, "digest")


def _note(user: str, sequence: int, body: bytes) -> Request:
    expected = f'"kept": {zlib.crc32(body)}'.encode()
    return Request("POST", f"/session/{user}?number={sequence}", body, expected, "note")
