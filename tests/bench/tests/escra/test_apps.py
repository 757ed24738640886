"""The applications' requests and rules: deterministic, checkable, and one with what the containers are told."""

from __future__ import annotations

import ast
import asyncio
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schemas.apps import NAME_PATTERN
from tests.bench.escra.apps import cache, grid_search, media, pictures
from tests.bench.escra.apps.application import (
    SERVICES_DIRECTORY,
    Application,
    BatchApplication,
    Container,
    Ending,
    Request,
    Site,
)
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


def _constants(path: str) -> dict[str, Any]:
    """What a service's program assigns to plain names, as far as it is written out."""
    found = {}
    for node in ast.parse((SERVICES / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def test_programs_in_containers_follow_the_same_rules() -> None:
    """They cannot import us, so what both sides have to know stands twice."""
    painter, worker, reports = (_constants(f"{name}.py") for name in ("pictures", "media/worker", "cache/reports"))
    assert painter["SIZES"] == pictures.SIZES
    assert (worker["TILE"], worker["COLUMNS"]) == (media.TILE, media.COLUMNS)
    assert (reports["SHARDS"], reports["BASE_KEYS"]) == (cache.SHARDS, cache.BASE_KEYS)
    source = (SERVICES / "media/worker.py").read_text(encoding="utf-8")
    assert all(f'"{name}": ImageFilter.' in source for name in media.FILTERS)


def test_media_knows_how_large_a_picture_comes_back() -> None:
    """Image 6 is 960x720 (6 mod 4 = 2), so 240 wide it is 180 high; 3 by 3 tiles of 480x360, doubled: 2880x2160."""
    requests = _requests(APPLICATIONS["media"], 11, 3000)
    previews = [each for each in requests if each.path == "/preview/6?width=240"]
    posters = [each for each in requests if each.kind == "poster" and each.path.count(",") == 8]
    assert previews[0].expected == b"preview 6 240x180;"
    assert posters[0].expected == b"poster 9 2880x2160;"


def test_functions_want_the_thumbnail_only_where_one_is_made() -> None:
    app = APPLICATIONS["functions"]
    requests = _requests(app, 5, 200)
    process = next(each for each in requests if each.kind == "process")
    metadata = next(each for each in requests if each.kind == "metadata")
    assert app.check(metadata, 200, metadata.expected)
    assert not app.check(process, 200, process.expected)
    assert app.check(process, 200, process.expected + b', "thumbnail": [160, 120]}')


class _RedisSite:
    """A site with one list of tasks and a table of results, and workers that take turns; some are killed."""

    def __init__(self, deaths: int = 0, losses: int = 0) -> None:
        self.tasks: list[str] = []
        self.results: dict[str, str] = {}
        self.started: list[str] = []
        self._deaths = deaths
        self._losses = losses

    async def ask(self, container: str, port: int, lines: bytes, answers: int) -> list[bytes]:
        words = lines.split(b"\r\n")[2::2]
        assert int(lines.split(b"\r\n")[0][1:]) == len(words)
        match words[0]:
            case b"EXISTS":
                answer = [b":1"]
            case b"DEL":
                self.tasks, self.results = [], {}
                answer = [b":2"]
            case b"LPUSH":
                self.tasks += [word.decode() for word in words[2:]]
                answer = [b":%d" % len(self.tasks)]
            case b"HLEN":
                answer = [b":%d" % len(self.results)]
            case b"HVALS":
                texts = [text.encode() for text in self.results.values()]
                answer = [b"*%d" % len(texts), *(part for text in texts for part in (b"$%d" % len(text), text))]
            case _:
                raise AssertionError(words)
        assert len(answer) == answers
        return answer

    async def execute(self, container: str, *command: str) -> str:
        raise AssertionError(command)

    async def run_to_end(self, containers: tuple[Container, ...], deadline_s: float) -> dict[str, Ending]:
        endings = {}
        for turn, container in enumerate(containers):
            self.started.append(container.name)
            killed = self._deaths > 0
            self._deaths -= killed
            taken, self.tasks = self.tasks[:1], self.tasks[1:]
            if turn == len(containers) - 1:
                taken, self.tasks = taken + self.tasks, []
            for task in [] if killed else taken[self._losses :]:
                number = json.loads(task)["number"]
                self.results[str(number)] = json.dumps({**json.loads(task), "score": 0.5 + number / 1000})
            endings[container.name] = Ending(137 if killed else 0, killed, 1.0, 2.0)
        return endings


def _batch(site: _RedisSite) -> Any:
    app = APPLICATIONS["grid-search"]
    assert isinstance(app, BatchApplication)
    as_site: Site = site
    return asyncio.run(app.run_batch(as_site))


def test_grid_has_96_tasks() -> None:
    """2 * 3 * 2 * 4 * 2 = 96."""
    assert len(set(grid_search.tasks())) == 96


def test_redis_command_in_its_protocol() -> None:
    """The example of Redis' own description of the protocol."""
    assert grid_search.command("LLEN", "mylist") == b"*2\r\n$4\r\nLLEN\r\n$6\r\nmylist\r\n"


def test_batch_without_kills_needs_twenty_workers() -> None:
    site = _RedisSite()
    result = _batch(site)
    assert (result.tasks_done, result.workers, result.workers_failed, result.oom_kills) == (96, 20, 0, 0)
    assert result.best["score"] == pytest.approx(0.595)  # task 95 has 0.5 + 95 / 1000


def test_batch_gives_tasks_of_killed_workers_to_new_ones() -> None:
    """Two workers are killed with a task each: two new ones are started, and nothing is missing."""
    site = _RedisSite(deaths=2)
    result = _batch(site)
    assert (result.tasks_done, result.workers, result.workers_failed, result.oom_kills) == (96, 22, 2, 2)
    assert site.started[20:] == ["again-1-00", "again-1-01"]


def test_batch_that_loses_tasks_without_a_kill_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="although every worker ended well"):
        _batch(_RedisSite(losses=1))
