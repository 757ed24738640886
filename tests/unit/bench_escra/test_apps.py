"""The applications' requests and rules: deterministic, checkable, and one with what the containers are told."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest

from schemas.apps import NAME_PATTERN
from tests.bench.escra.apps.application import SERVICES_DIRECTORY, Application, BatchApplication, Request
from tests.bench.escra.apps.registry import APPLICATIONS
from tests.bench.escra.apps.shop import price_cents, product_name, results
from tests.bench.escra.deploy import SERVICES

SERVING = [app for app in APPLICATIONS.values() if not isinstance(app, BatchApplication)]


def _requests(app: Application, seed: int, count: int) -> list[Request]:
    rng = random.Random(seed)
    return [app.request(rng, sequence) for sequence in range(count)]


@pytest.mark.parametrize("app", APPLICATIONS.values(), ids=str)
def test_containers_have_usable_names_and_programs_that_exist(app: Application) -> None:
    names = [container.name for container in app.containers]
    assert len(set(names)) == len(names)
    assert app.entry in names
    for container in app.containers:
        assert re.fullmatch(NAME_PATTERN, container.name)
        for word in container.command:
            if match := re.fullmatch(r"([a-z_.]+):app", word):
                assert (SERVICES / (match[1].replace(".", "/") + ".py")).is_file()
            if word.startswith(SERVICES_DIRECTORY):
                assert (SERVICES / Path(word).relative_to(SERVICES_DIRECTORY)).is_file()


@pytest.mark.parametrize("app", SERVING, ids=str)
def test_same_seed_gives_same_requests_and_another_seed_others(app: Application) -> None:
    assert _requests(app, 1, 200) == _requests(app, 1, 200)
    assert _requests(app, 1, 200) != _requests(app, 2, 200)


@pytest.mark.parametrize("app", SERVING, ids=str)
def test_every_request_can_be_checked(app: Application) -> None:
    """An empty answer, an error, and the right answer to another request do not count."""
    requests = _requests(app, 3, 100)
    assert all(request.expected for request in requests)
    assert not any(app.check(request, 200, b"") for request in requests)
    assert not any(app.check(request, 500, request.expected) for request in requests)
    assert len({request.kind for request in requests}) > 1


@pytest.mark.parametrize("app", SERVING, ids=str)
def test_front_server_knows_only_containers_of_the_application(app: Application) -> None:
    front = next(container for container in app.containers if container.name == app.entry)
    [text] = front.files.values()
    upstreams = {match[1] for match in re.finditer(r"server ([a-z0-9-]+):\d+", text)}
    assert upstreams
    assert upstreams <= {container.name for container in app.containers}


def test_shop_mixes_cheap_and_costly_requests() -> None:
    """45/25/20/10 %: of 4000, a share p lies within 4 x sqrt(4000 p (1 - p)) <= 126 of its mean."""
    counts = Counter(request.kind for request in _requests(APPLICATIONS["shop"], 7, 4000))
    for kind, mean in {"product": 1800, "search": 1000, "addition": 800, "order": 400}.items():
        assert abs(counts[kind] - mean) <= 126


def test_shop_names_and_prices_follow_the_rule_of_its_data() -> None:
    """By hand: 1234 = 2 mod 16 (cedar); 1234 // 16 = 77 = 13 mod 32 (easel); 9772046 mod 9900 = 746."""
    assert product_name(1234) == "cedar easel 1234"
    assert price_cents(1234) == 846


def test_shop_search_counts_what_has_the_name() -> None:
    found = [product for product in range(5000) if product_name(product).startswith("cedar easel ")]
    assert results(2, 13) == len(found) == 10
