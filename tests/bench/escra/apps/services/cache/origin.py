"""Renders what the cache does not hold."""

from __future__ import annotations

from cache.reports import render
from flask import Flask, Response

app = Flask(__name__)


@app.get("/render/<key>")
def rendered(key: str) -> Response:
    return Response(render(key), content_type="text/plain")
