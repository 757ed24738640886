"""The objects of the cache: reports of 64 to 256 KiB, each the same whenever it is rendered."""

from __future__ import annotations

import hashlib

import jinja2

SHARDS = 4
BASE_KEYS = 1000
"""The keys b0, b1, ... are in the cache from the start."""
BASE_DATABASE = 0
GROWING_DATABASE = 1
_LEAST_ROWS = 250
_MOST_ROWS = 1000
_ROW_BYTES = 256

_PAGE = jinja2.Template(
    "object {{ key }} rows {{ rows | length }}\n{% for row in rows %}{{ loop.index }};{{ row }}\n{% endfor %}"
)


def shard(key: str) -> int:
    """Which of the shards 0 to 3 holds a key."""
    return hashlib.blake2b(key.encode(), digest_size=2).digest()[0] % SHARDS


def database(key: str) -> int:
    """Redis' database: what grows during a run stands apart, so that it can be thrown away alone."""
    return BASE_DATABASE if key.startswith("b") else GROWING_DATABASE


def render(key: str) -> bytes:
    """The report; its first line names the key."""
    seed = hashlib.blake2b(key.encode(), digest_size=4).digest()
    count = _LEAST_ROWS + int.from_bytes(seed, "little") % (_MOST_ROWS - _LEAST_ROWS)
    text = hashlib.shake_128(key.encode()).hexdigest(count * _ROW_BYTES // 2)
    rows = [text[start : start + _ROW_BYTES] for start in range(0, len(text), _ROW_BYTES)]
    return _PAGE.render(key=key, rows=rows).encode()
