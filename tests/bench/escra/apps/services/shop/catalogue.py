"""The shop's products: PostgreSQL asked over HTTP."""

from __future__ import annotations

import threading
from typing import Any

import psycopg2
import psycopg2.extras
from flask import Flask, Response, abort, request

app = Flask(__name__)
_own = threading.local()


def _rows(query: str, *values: object) -> list[dict[str, Any]]:
    """Rows of a query over this thread's connection; a broken connection is made anew once."""
    for attempt in (1, 2):
        try:
            if getattr(_own, "connection", None) is None:
                _own.connection = psycopg2.connect("host=postgres user=postgres dbname=postgres connect_timeout=10")
                _own.connection.autocommit = True
            with _own.connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
                cursor.execute(query, values)
                return cursor.fetchall()
        except (psycopg2.OperationalError, psycopg2.InterfaceError):
            _own.connection = None
            if attempt == 2:
                raise
    raise AssertionError


@app.get("/products/<int:product>")
def one(product: int) -> Response:
    found = _rows("select id, name, price_cents, category, description from products where id = %s", product)
    if not found:
        abort(404)
    related = "select id, name, price_cents, description from products where category = %s order by price_cents limit 8"
    reviews = _rows("select stars, words from reviews where product = %s", product)
    answer = {**found[0], "related": _rows(related, found[0]["category"]), "reviews": reviews}
    return app.json.response(answer)


@app.get("/search")
def search() -> Response:
    pattern = "%" + request.args["words"] + "%"
    query = "select id, name, price_cents, description from products where name ilike %s order by price_cents limit 50"
    return app.json.response(_rows(query, pattern))


@app.post("/prices")
def prices() -> Response:
    wanted = list(request.get_json(force=True))
    found = _rows("select id, price_cents from products where id = any(%s)", wanted)
    return app.json.response({str(row["id"]): row["price_cents"] for row in found})
