"""A data-parallel job whose gradients fill a link: DistributedDataParallel over gloo, on points that are drawn.

As a job: ``turnbuckle jobs submit --workers 2 -- .venv/bin/python docs/examples/jobs/ddp.py``. Nothing in it knows of
Turnbuckle. The first worker prints a JSON line per iteration, in seconds since the epoch; gradients are sent while the
backward pass runs. ``--compute`` stands for the rest of a model, in slices that a pause of the job makes longer.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

SLICE_S = 0.01


def main() -> None:
    """Train a line of layers on numbers that mean nothing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parameters", type=int, default=1_690_000, help="about so many; each is 4 bytes on the wire")
    parser.add_argument("--compute", type=float, default=0.6, metavar="SECONDS", help="besides the layers")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--begin-at", type=float, default=0.0, metavar="EPOCH_S", help="with the first iteration")
    options = parser.parse_args()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    width = max(1, options.parameters // 1_024)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1_013, width), nn.ReLU(), nn.Linear(width, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    points = torch.randn(16, 1_013)
    size = sum(4 * parameter.numel() for parameter in model.parameters())
    workers = distributed.get_world_size()
    distributed.barrier()
    while (left_s := options.begin_at - time.time()) > 0:
        time.sleep(min(left_s, SLICE_S))
    for number in range(options.iterations):
        begin_s = time.time()
        for _ in range(round(options.compute / SLICE_S)):
            time.sleep(SLICE_S)
        loss = model(points).pow(2).mean()
        optimizer.zero_grad()
        sending_s = time.time()
        loss.backward()
        optimizer.step()
        line = {"iteration": number, "begin_s": begin_s, "sending_s": sending_s, "end_s": time.time()}
        if distributed.get_rank() == 0:
            print(json.dumps({**line, "bytes": 2 * size * (workers - 1) // workers}), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
