"""The layered engine beside stock FSDP2, step by step in the same processes. ``make bench-trainer``.

torchrun starts two ranks of this module. Each kind of training has the same model (a transformer), the same batch and
AdamW; the kinds take turns at every step, so that whatever else the machine does meets all of them. FSDP2 recomputes
activations, as the layered engine does. A step ends when both ranks have ended it. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch import distributed as dist

from services._jobs.layer_chain import chain_of
from services.trainer.worker.built_model import BuiltModel
from services.trainer.worker.engine import Engine
from services.trainer.worker.flat import Placement
from services.trainer.worker.fsdp2 import Fsdp2Engine
from services.trainer.worker.layered import LayeredEngine
from tests.bench.machine import this_machine
from tests.bench.trainer_model import Shape, build
from tests.bench.trainer_steps import recomputing, stepper

RANKS: Final = 2
VOCABULARY: Final = 512
LENGTH: Final = 64
HEADS: Final = 4
BASE: Final = "fsdp2"
KINDS: Final = {
    BASE: "fully_shard, recomputing",
    "even": "layered, even shares",
    "3:1": "layered, shares 3:1",
    "3:1, two": "layered, shares 3:1, two micro-batches",
}
SIZES: Final = (Shape(128, 4, HEADS, LENGTH, VOCABULARY), Shape(256, 6, HEADS, LENGTH, VOCABULARY))


def trainings(shape: Shape, samples: int) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """One of each kind."""
    cpu = torch.device("cpu")
    even, uneven = (Placement(dist.get_rank(), shares, cpu) for shares in ((1.0, 1.0), (3.0, 1.0)))
    checkpointed = recomputing(shape)

    def training(engine: Engine, microbatches: int) -> Callable[[Tensor, Tensor], Tensor]:
        optimizer = torch.optim.AdamW(engine.parameters, lr=1e-3, foreach=False)
        return stepper(engine, optimizer, microbatches, samples * RANKS)

    return {
        BASE: training(Fsdp2Engine(BuiltModel(checkpointed), chain_of(checkpointed), even), 1),
        "even": training(LayeredEngine(chain_of(build(shape)), even), 1),
        "3:1": training(LayeredEngine(chain_of(build(shape)), uneven), 1),
        "3:1, two": training(LayeredEngine(chain_of(build(shape)), uneven), 2),
    }


def measure(steps: int, samples: int) -> None:
    """As a rank: rank 0 prints seconds by size and kind. The first step of each is not counted."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for shape in SIZES:
        kinds = trainings(shape, samples)
        took: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(steps + 1):
            drawn = torch.randint(0, VOCABULARY, (samples, LENGTH + 1))
            for kind, step in kinds.items():
                dist.barrier()
                begin_s = time.perf_counter()
                step(drawn[:, :-1], drawn[:, 1:])
                dist.barrier()
                if number:
                    took[kind].append(time.perf_counter() - begin_s)
        if dist.get_rank() == 0:
            print(json.dumps({"parameters": shape.parameters, "took_s": took}), flush=True)
    dist.destroy_process_group()


def report(found: dict[str, object], took_s: dict[str, list[float]], samples: int) -> None:
    """Median, range, and the median of ratios within a turn."""
    print(
        f"\n{found['parameters']:,} parameters, {samples} samples on each of {RANKS} ranks, {len(took_s[BASE])} steps"
    )
    for kind, values in took_s.items():
        ratio = statistics.median(one / base for one, base in zip(values, took_s[BASE], strict=True))
        times = f"{1e3 * statistics.median(values):7.1f} ms ({1e3 * min(values):.1f}-{1e3 * max(values):.1f})"
        print(f"  {KINDS[kind]:40} {times:28} {ratio:.2f} of {BASE}")


def main() -> None:
    """Start the ranks, and print what they measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--samples", type=int, default=4, help="of each rank; an even number")
    given = parser.parse_args()
    if "RANK" in os.environ:
        measure(given.steps, given.samples)
        return
    print(this_machine().line, flush=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command = [*launcher, "-m", "tests.bench.trainer", "--steps", str(given.steps), "--samples", str(given.samples)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    for line in done.stdout.splitlines():
        found = json.loads(line)
        report(found, found["took_s"], given.samples)


if __name__ == "__main__":
    main()
