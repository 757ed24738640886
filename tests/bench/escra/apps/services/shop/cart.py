"""The shop's carts in Redis, and orders in PostgreSQL; prices come from the catalogue."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable

import psycopg2
import psycopg2.extras
import redis
from flask import Flask, Response, abort, request
from urllib3 import HTTPConnectionPool

app = Flask(__name__)
_carts = redis.Redis(host="redis", decode_responses=True)
_catalogue = HTTPConnectionPool("catalogue", 8000, maxsize=16, timeout=30)
_own = threading.local()
_KEPT_S = 600


def _prices(products: Iterable[int]) -> dict[int, int]:
    headers = {"Content-Type": "application/json"}
    answer = _catalogue.request("POST", "/prices", body=json.dumps(list(products)), headers=headers)
    if answer.status != 200:
        abort(502)
    return {int(product): int(price) for product, price in json.loads(answer.data).items()}


@app.get("/carts/<user>/count")
def count(user: str) -> Response:
    return app.json.response({"count": sum(int(each) for each in _carts.hvals(f"cart:{user}"))})


@app.post("/carts/<user>")
def add(user: str) -> Response:
    order = request.get_json(force=True)
    product, number = int(order["product"]), int(order["count"])
    price = _prices([product])[product]
    pipe = _carts.pipeline()
    pipe.hincrby(f"cart:{user}", str(product), number)
    pipe.expire(f"cart:{user}", _KEPT_S)
    pipe.execute()
    return app.json.response({"product": product, "line_cents": price * number})


@app.post("/orders")
def order() -> Response:
    wanted = request.get_json(force=True)
    lines = [(int(product), int(number)) for product, number in wanted["lines"]]
    prices = _prices(product for product, _ in lines)
    total = sum(prices[product] * number for product, number in lines)
    for attempt in (1, 2):
        try:
            number = _store(wanted["user"], total, lines)
            break
        except (psycopg2.OperationalError, psycopg2.InterfaceError):
            _own.connection = None
            if attempt == 2:
                raise
    _carts.delete(f"cart:{wanted['user']}")
    return app.json.response({"order": number, "total_cents": total})


def _store(user: str, total: int, lines: list[tuple[int, int]]) -> int:
    if getattr(_own, "connection", None) is None:
        _own.connection = psycopg2.connect("host=postgres user=postgres dbname=postgres connect_timeout=10")
    with _own.connection, _own.connection.cursor() as cursor:
        cursor.execute("insert into orders (customer, total_cents) values (%s, %s) returning id", (user, total))
        (number,) = cursor.fetchone()
        rows = [(number, product, count) for product, count in lines]
        psycopg2.extras.execute_values(cursor, "insert into order_lines values %s", rows)
    return int(number)
