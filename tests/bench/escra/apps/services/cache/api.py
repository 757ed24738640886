"""Reads reports through the shards of the cache; what is missing is rendered by the origin and kept.

A shard that cannot be reached is a miss: the origin has to do the work.
"""

from __future__ import annotations

import contextlib
import json
import zlib

import redis
from cache.reports import BASE_DATABASE, GROWING_DATABASE, SHARDS, database, shard
from flask import Flask, Response, abort, request
from pymemcache.client.base import PooledClient
from urllib3 import HTTPConnectionPool

app = Flask(__name__)
_shards = {
    (number, base): redis.Redis(host=f"cache-{number}", db=base, socket_timeout=10)
    for number in range(SHARDS)
    for base in (BASE_DATABASE, GROWING_DATABASE)
}
_sessions = PooledClient(("sessions", 11211), max_pool_size=16, timeout=10, no_delay=True, default_noreply=False)
_origin = HTTPConnectionPool("origin", 8000, maxsize=16, timeout=30)
_SHOWN_BYTES = 2048
_SESSION_BYTES = 4096


def _rendered(key: str) -> bytes:
    answer = _origin.request("GET", f"/render/{key}")
    if answer.status != 200:
        abort(502)
    with contextlib.suppress(redis.RedisError):
        _shards[shard(key), database(key)].set(key, answer.data)
    return answer.data


def _object(key: str) -> bytes:
    try:
        found = _shards[shard(key), database(key)].get(key)
    except redis.RedisError:
        found = None
    return found if found is not None else _rendered(key)


def _seen(user: str, key: str) -> None:
    """Append to what the user has looked at; the newest 4 KiB are kept."""
    before = _sessions.get(user) or b""
    _sessions.set(user, (before + b" " + key.encode())[-_SESSION_BYTES:])


@app.get("/object/<key>")
def one(key: str) -> Response:
    content = _object(key)
    _seen(request.args["user"], key)
    return Response(content[:_SHOWN_BYTES], headers={"ETag": f'"{zlib.crc32(content):08x}"'}, content_type="text/plain")


@app.get("/digest")
def many() -> Response:
    """One line per key: the sum of its report, read in one go per shard."""
    keys = request.args["keys"].split(",")
    sums: dict[str, str] = {}
    for number in range(SHARDS):
        here = [key for key in keys if shard(key) == number]
        try:
            found = _shards[number, BASE_DATABASE].mget(here) if here else []
        except redis.RedisError:
            found = [None] * len(here)
        for key, value in zip(here, found, strict=True):
            content = value if value is not None else _rendered(key)
            sums[key] = f"{content[:40].decode().splitlines()[0]} {zlib.crc32(content):08x}"
    return Response("\n".join(sums[key] for key in keys), content_type="text/plain")


@app.post("/session/<user>")
def session(user: str) -> Response:
    """Keep what the user has sent, and read it back."""
    _sessions.set(f"note-{user}-{request.args['number']}", request.get_data(), expire=60)
    kept = _sessions.get(f"note-{user}-{request.args['number']}") or b""
    return Response(json.dumps({"user": user, "kept": zlib.crc32(kept)}), content_type="application/json")
