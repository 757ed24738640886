"""Puts the base keys into the shards: `python3 fill.py`, run in a container of the application."""

from __future__ import annotations

import sys

import redis

sys.path.insert(0, "/srv/bench")

from cache.reports import BASE_DATABASE, BASE_KEYS, SHARDS, render, shard

shards = [redis.Redis(host=f"cache-{number}", db=BASE_DATABASE) for number in range(SHARDS)]
for key in (f"b{number}" for number in range(BASE_KEYS)):
    if not shards[shard(key)].exists(key):
        shards[shard(key)].set(key, render(key))
print(sum(each.dbsize() for each in shards))
