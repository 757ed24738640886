"""Application (d), the grid search: some twenty short-lived scikit-learn workers share a list of tasks in Redis.

The thesis' serverless GridSearch (2.6.6.1) with seeded reviews instead of Amazon's. A worker that is killed has lost
its task; like the thesis' orchestrator we notice when the others have ended, and start new workers for what is missing.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping

from tests.bench.escra.apps.application import (
    SERVICES_DIRECTORY,
    BatchApplication,
    BatchResult,
    Container,
    Ending,
    Site,
    redis,
)

REVIEWS = 400
WORKERS = 20
GRID: Mapping[str, tuple[object, ...]] = {
    "ngrams": (1, 2),
    "max_df": (0.5, 0.75, 1.0),
    "use_idf": (True, False),
    "alpha": (1e-3, 1e-4, 3e-5, 1e-5),
    "penalty": ("l2", "elasticnet"),
}
_ROUNDS = 3
"""So often workers are started for tasks that are missing."""
_ROUND_DEADLINE_S = 300.0
_PORT = 6379


def tasks() -> list[str]:
    """Every point of the grid, as a worker takes it: 96."""
    points = itertools.product(*GRID.values())
    return [
        json.dumps({"number": number, "point": dict(zip(GRID, point, strict=True))})
        for number, point in enumerate(points)
    ]


def command(*words: str) -> bytes:
    """One command in Redis' protocol."""
    encoded = [word.encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)


class GridSearch(BatchApplication):
    """One standing container, and twenty per run."""

    name = "grid-search"
    containers = (Container("storage", redis()),)
    entry = "storage"

    async def prepare(self, site: Site) -> None:
        """Write the reviews, in a container that is gone afterwards."""
        program = f"{SERVICES_DIRECTORY}/grid_search/reviews.py"
        writer = Container("writer", ("python3", program, "storage", str(REVIEWS)))
        endings = await site.run_to_end((writer,), 30.0)
        if endings["writer"].exit_code != 0:
            raise RuntimeError(f"writing the reviews ended with {endings['writer']}")

    async def run_batch(self, site: Site) -> BatchResult:
        """See `BatchApplication.run_batch`."""
        wanted = dict(enumerate(tasks()))
        [kept] = await site.ask("storage", _PORT, command("EXISTS", "reviews"), 1)
        if kept != b":1":  # the storage was killed for memory
            await self.prepare(site)
        await site.ask("storage", _PORT, command("DEL", "tasks", "results"), 1)
        start_s = time.monotonic()
        endings: list[Ending] = []
        results: dict[int, dict[str, object]] = {}
        for turn in range(_ROUNDS):
            missing = [task for number, task in wanted.items() if number not in results]
            if not missing:
                break
            await site.ask("storage", _PORT, command("LPUSH", "tasks", *missing), 1)
            endings += await _work(site, turn, min(WORKERS, len(missing)))
            results = await _results(site)
        return _summary(endings, results, len(wanted), start_s)


async def _work(site: Site, turn: int, count: int) -> list[Ending]:
    """Start workers and wait for their ends; those of a second turn have names of their own."""
    program = ("python3", f"{SERVICES_DIRECTORY}/grid_search/worker.py")
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    prefix = "worker" if turn == 0 else f"again-{turn}"
    workers = tuple(Container(f"{prefix}-{number:02d}", program, environment=environment) for number in range(count))
    return list((await site.run_to_end(workers, _ROUND_DEADLINE_S)).values())


async def _results(site: Site) -> dict[int, dict[str, object]]:
    [count] = await site.ask("storage", _PORT, command("HLEN", "results"), 1)
    lines = await site.ask("storage", _PORT, command("HVALS", "results"), 1 + 2 * int(count[1:]))
    found = [json.loads(line) for line in lines[2::2]]
    return {result["number"]: result for result in found}


def _summary(
    endings: list[Ending], results: Mapping[int, Mapping[str, object]], tasks_wanted: int, start_s: float
) -> BatchResult:
    failed = [ending for ending in endings if ending.exit_code != 0]
    if len(results) < tasks_wanted and not failed:
        raise RuntimeError(f"{tasks_wanted - len(results)} tasks have no result although every worker ended well")
    best = max(results.values(), key=lambda result: (_score(result), str(result["point"])), default=None)
    return BatchResult(
        completion_s=max((ending.ended_s for ending in endings), default=start_s) - start_s,
        tasks_done=len(results),
        workers=len(endings),
        workers_failed=len(failed),
        oom_kills=sum(ending.oom_killed for ending in endings),
        best={"score": _score(best), "point": json.dumps(best["point"])} if best is not None else {},
    )


def _score(result: Mapping[str, object]) -> float:
    score = result["score"]
    if not isinstance(score, float):
        raise TypeError(f"a worker answered {result}")
    return score
