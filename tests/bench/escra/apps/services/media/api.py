"""The pipeline's front: turns a request into jobs for the workers, waits for them, and answers with a JPEG."""

from __future__ import annotations

import json
import uuid

import redis
from flask import Flask, Response, abort, request
from pymemcache.client.base import PooledClient

app = Flask(__name__)
_queue = redis.Redis(host="queue")
_store = redis.Redis(host="store")
_previews = PooledClient(("previews", 11211), max_pool_size=32, timeout=10, no_delay=True)
_WAIT_S = 10
_PREVIEW_KEPT_S = 20


def _work(jobs: list[dict[str, object]]) -> None:
    """Have jobs done by whichever worker is free, and wait until all are."""
    batch = f"done:{uuid.uuid4().hex}"
    _queue.lpush("jobs", *(json.dumps({**job, "done": batch}) for job in jobs))
    for _ in jobs:
        done = _queue.blpop(batch, timeout=_WAIT_S)
        if done is None or done[1] != b"ok":
            abort(502)


def _taken(key: str) -> bytes:
    """A result; nobody needs it again."""
    content = _store.getdel(key)
    if content is None:
        abort(502)
    return content


def _jpeg(content: bytes) -> Response:
    return Response(content, content_type="image/jpeg")


@app.get("/preview/<int:image>")
def preview(image: int) -> Response:
    """A small picture, from memcached if it was made lately."""
    width = int(request.args["width"])
    kept = _previews.get(f"{image}-{width}")
    if kept is None:
        result = f"result:{uuid.uuid4().hex}"
        _work([{"kind": "preview", "image": image, "width": width, "result": result}])
        kept = _taken(result)
        _previews.set(f"{image}-{width}", kept, expire=_PREVIEW_KEPT_S)
    return _jpeg(kept)


@app.get("/filter/<int:image>")
def filtered(image: int) -> Response:
    result = f"result:{uuid.uuid4().hex}"
    _work([{"kind": "filter", "image": image, "name": request.args["name"], "result": result}])
    return _jpeg(_taken(result))


@app.get("/poster")
def poster() -> Response:
    """Images side by side: every tile is a job of its own, and putting them together another."""
    images = [int(each) for each in request.args["images"].split(",")]
    base = uuid.uuid4().hex
    tiles = [f"result:{base}-{number}" for number in range(len(images))]
    _work(
        [{"kind": "tile", "image": image, "result": tile} for image, tile in zip(images, tiles, strict=True)],
    )
    _work([{"kind": "poster", "tiles": tiles, "result": f"result:{base}"}])
    return _jpeg(_taken(f"result:{base}"))
