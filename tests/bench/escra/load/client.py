"""The load client as a process: ``python -m tests.bench.escra.load.client --app shop``.

One JSON line on stdin is one run (`Order`), and is answered by two on stdout: ``{"begun_ns": ...}``, the wall clock of
moment 0, and ``{"done": {...}}`` after the last answer or time-out. The rows lie then in the file that the order named.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import selectors
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.bench.escra.apps import registry
from tests.bench.escra.apps.application import Application
from tests.bench.escra.load.arrivals import TRACES, Load, arrivals
from tests.bench.escra.load.http1 import encode_request
from tests.bench.escra.load.sender import Exchange, OpenLoop, Outcome, Sent
from tests.bench.escra.load.trace import read_trace

_HEAD_START_S: Final = 0.05
"""From the answer that names moment 0 to moment 0."""
NICENESS: Final = -10
"""The client measures: it must not wait behind what it measures."""


@dataclass(frozen=True, slots=True)
class Order:
    """One run."""

    load: Load
    host: str
    port: int
    request_seed: int
    timeout_s: float
    traces: str
    """Directory of the load traces."""
    out: str
    """File for the rows, npz."""

    @classmethod
    def from_json(cls, text: str | bytes) -> Order:
        """What `json.dumps(dataclasses.asdict(order))` wrote."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "load": Load(**fields["load"])})


async def run_order(app: Application, order: Order, begun: Any) -> dict[str, Any]:
    """Carry one order out; ``begun`` is told the wall clock of moment 0."""
    trace = read_trace(order.load.kind, Path(order.traces)) if order.load.kind in TRACES else None
    times = arrivals(order.load, trace)
    address = (order.host, order.port)
    rng = random.Random(order.request_seed)
    host = f"{order.host}:{order.port}"

    def make(number: int) -> Exchange:
        request = app.request(rng, number)
        payload = encode_request(host, request.method, request.path, request.body)
        return Exchange(payload, lambda status, body: app.check(request, status, body), request.kind)

    loop = asyncio.get_running_loop()
    client = OpenLoop(address, times, order.timeout_s)
    cpu_s = time.process_time()
    begun(time.time_ns() + int(_HEAD_START_S * 1e9))
    sent = await client.run(make, loop.time() + _HEAD_START_S)
    cpu_s = time.process_time() - cpu_s
    save(sent, Path(order.out))
    counts = {outcome.name.lower(): int(np.count_nonzero(sent.outcome == outcome)) for outcome in Outcome}
    return {"requests": len(times), "cpu_s": cpu_s, **counts}


def save(sent: Sent, path: Path) -> None:
    """Rows as a compact file, whole or not at all."""
    names = sorted(set(sent.kinds))
    number = {name: index for index, name in enumerate(names)}
    unfinished = path.with_name(f"{path.name}.part")
    with unfinished.open("wb") as file:
        np.savez_compressed(
            file,
            intended_s=sent.intended_s,
            lag_s=sent.lag_s.astype(np.float32),
            latency_s=sent.latency_s.astype(np.float32),
            outcome=sent.outcome,
            kind=np.array([number[kind] for kind in sent.kinds], dtype=np.int8),
            kind_names=np.array(names, dtype=np.str_),
        )
    unfinished.replace(path)


async def serve(app: Application) -> None:
    """Carry out orders until stdin ends."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            done = await run_order(app, Order.from_json(line), lambda begun_ns: _say({"begun_ns": begun_ns}))
        except Exception as error:  # noqa: BLE001 - whatever it is, the runner is told and decides
            _say({"error": f"{type(error).__name__}: {error}"})
        else:
            _say({"done": done})
        gc.collect()


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> int:
    """Serve; 69 where the application is unknown."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.escra.load.client")
    parser.add_argument("--app", required=True, choices=list(registry.APPLICATIONS))
    app = registry.APPLICATIONS[parser.parse_args().app]
    if os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    gc.disable()  # a pause would be measured as latency; collected between runs
    # select(2) waits to the microsecond; epoll, as asyncio uses it, to the millisecond.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    asyncio.set_event_loop(loop)
    _say({"ready": True})
    loop.run_until_complete(serve(app))
    return 0


if __name__ == "__main__":
    sys.exit(main())
