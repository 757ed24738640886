"""Application (a), the shop: nginx -> pages -> catalogue and cart -> PostgreSQL and Redis.

Products' names and prices follow a rule that services/shop/seed.sql knows too, so that every answer can be checked.
"""

from __future__ import annotations

import json
import random
import re

from tests.bench.escra.apps.application import (
    SERVICES_DIRECTORY,
    Application,
    Container,
    Request,
    Site,
    gunicorn,
    nginx,
    postgres,
    redis,
)

PRODUCTS = 5000
MATERIALS = re.findall(
    "[a-z]+", "amber brass cedar delft ebony flint glass hazel ivory jade linen maple onyx pearl quartz slate"
)
THINGS = re.findall(
    "[a-z]+",
    "anvil basin bench board bowl brush candle chair chest clock crate desk drum easel frame globe hook jar kettle "
    "lamp ladle mirror mug plate press rack screen shelf stool tray vase wheel",
)
USERS = 2000
_MOST_LINES = 8


def product_name(product: int) -> str:
    """As seed.sql names it."""
    return f"{MATERIALS[product % 16]} {THINGS[product // 16 % 32]} {product}"


def price_cents(product: int) -> int:
    """As seed.sql prices it."""
    return 100 + product * 7919 % 9900


def results(material: int, thing: int) -> int:
    """How many products a search for a material and a thing finds."""
    return len(range(material + 16 * thing, PRODUCTS, 16 * 32))


_FRONT, _FRONT_FILES = nginx(
    "    location / { proxy_pass http://pages; }\n", {"pages": ("front-1:8000", "front-2:8000")}
)


class Shop(Application):
    """Seven containers; a request passes three to six of them."""

    name = "shop"
    containers = (
        Container("nginx", _FRONT, _FRONT_FILES),
        Container("front-1", gunicorn("shop.front")),
        Container("front-2", gunicorn("shop.front")),
        Container("catalogue", gunicorn("shop.catalogue", threads=12)),
        Container("cart", gunicorn("shop.cart", threads=12)),
        Container("redis", redis()),
        Container("postgres", postgres(), user="postgres"),
    )
    entry = "nginx"
    base_rate_rps = 220.0

    def request(self, rng: random.Random, sequence: int) -> Request:
        """45 % product pages, 25 % searches, 20 % additions to a cart, 10 % orders of up to eight lines."""
        chosen = rng.random()
        user = f"u{rng.randrange(USERS)}"
        if chosen < 0.45:
            return _product(int(PRODUCTS * rng.random() ** 2), user)
        if chosen < 0.70:
            return _search(rng.randrange(16), rng.randrange(32), user)
        if chosen < 0.90:
            return _addition(rng.randrange(PRODUCTS), 1 + rng.randrange(3), user)
        lines = [(rng.randrange(PRODUCTS), 1 + rng.randrange(3)) for _ in range(1 + rng.randrange(_MOST_LINES))]
        return _order(lines, user)

    async def prepare(self, site: Site) -> None:
        """Create and fill the tables."""
        await _psql(site, "-f", f"{SERVICES_DIRECTORY}/shop/seed.sql")

    async def reset(self, site: Site) -> None:
        """No carts, no orders."""
        await site.ask("redis", 6379, b"FLUSHALL\r\n", 1)
        await _psql(site, "-c", "truncate orders, order_lines")


async def _psql(site: Site, *arguments: str) -> None:
    await site.execute("postgres", "psql", "-h", "/tmp", "-U", "postgres", "-q", "-v", "ON_ERROR_STOP=1", *arguments)


def _product(product: int, user: str) -> Request:
    expected = f"<h1>{product_name(product)}</h1>".encode()
    return Request("GET", f"/product/{product}?user={user}", b"", expected, "product")


def _search(material: int, thing: int, user: str) -> Request:
    path = f"/search?words={MATERIALS[material]}+{THINGS[thing]}&user={user}"
    return Request("GET", path, b"", f"<h1>{results(material, thing)} results</h1>".encode(), "search")


def _addition(product: int, count: int, user: str) -> Request:
    body = json.dumps({"product": product, "count": count}).encode()
    return Request("POST", f"/cart/{user}", body, f'"line_cents":{price_cents(product) * count}'.encode(), "addition")


def _order(lines: list[tuple[int, int]], user: str) -> Request:
    total_cents = sum(price_cents(product) * count for product, count in lines)
    body = json.dumps({"user": user, "lines": lines}).encode()
    return Request("POST", "/order", body, f'"total_cents":{total_cents}'.encode(), "order")
