"""The shop's pages: asks the catalogue and the cart, and renders HTML."""

from __future__ import annotations

import json
from typing import Any

from flask import Flask, Response, abort, request
from urllib3 import HTTPConnectionPool

app = Flask(__name__)
_TIMEOUT_S = 30
_catalogue = HTTPConnectionPool("catalogue", 8000, maxsize=16, timeout=_TIMEOUT_S)
_cart = HTTPConnectionPool("cart", 8000, maxsize=16, timeout=_TIMEOUT_S)

_LAYOUT = """<!doctype html><html><head><title>{{ title }}</title></head><body>
<nav><a href="/">Shop</a> <a href="/cart/{{ user }}">Cart ({{ in_cart }})</a></nav><h1>{{ title }}</h1>
{% if product %}<p class="price">{{ "%.2f" | format(product.price_cents / 100) }}</p><p>{{ product.description }}</p>
<ul>{% for review in product.reviews %}<li>{{ "*" * review.stars }} {{ review.words }}</li>{% endfor %}</ul>{% endif %}
<table>{% for each in products %}<tr><td><a href="/product/{{ each.id }}">{{ each.name | title }}</a></td>
<td>{{ "%.2f" | format(each.price_cents / 100) }}</td><td>{{ each.description | truncate(60) }}</td></tr>{% endfor %}
</table>
</body></html>"""
_page = app.jinja_env.from_string(_LAYOUT)


def _ask(pool: HTTPConnectionPool, method: str, path: str, body: object = None) -> Any:
    headers = {"Content-Type": "application/json"}
    answer = pool.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
    if answer.status != 200:
        abort(502 if answer.status >= 500 else answer.status)
    return json.loads(answer.data)


def _in_cart(user: str) -> int:
    return int(_ask(_cart, "GET", f"/carts/{user}/count")["count"])


@app.get("/product/<int:product>")
def product_page(product: int) -> str:
    found = _ask(_catalogue, "GET", f"/products/{product}")
    user = request.args.get("user", "nobody")
    return _page.render(
        title=found["name"], product=found, products=found["related"], user=user, in_cart=_in_cart(user)
    )


@app.get("/search")
def search_page() -> str:
    found = _ask(_catalogue, "GET", f"/search?words={request.args['words'].replace(' ', '+')}")
    user = request.args.get("user", "nobody")
    title = f"{len(found)} results"
    return _page.render(title=title, product=None, products=found, user=user, in_cart=_in_cart(user))


@app.post("/cart/<user>")
def add(user: str) -> Response:
    return app.json.response(_ask(_cart, "POST", f"/carts/{user}", request.get_json(force=True)))


@app.post("/order")
def order() -> Response:
    return app.json.response(_ask(_cart, "POST", "/orders", request.get_json(force=True)))
