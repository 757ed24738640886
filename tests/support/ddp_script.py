"""An ordinary data-parallel training script, as a user would write it for torchrun: it knows nothing of Turnbuckle."""

from __future__ import annotations

import argparse
import sys
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train on made-up data for so many steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--pause-s", type=float, default=0.0, help="per step, as a slow input would")
    arguments = parser.parse_args()
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(rank)
    network = nn.Sequential(nn.Linear(64, arguments.width), nn.ReLU(), nn.Linear(arguments.width, 10))
    parallel = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    for step in range(arguments.steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            parallel(torch.randn(arguments.batch, 64)), torch.randint(0, 10, (arguments.batch,))
        )
        loss.backward()
        optimizer.step()
        time.sleep(arguments.pause_s)
        if rank == 0 and (step + 1) % 10 == 0:
            sys.stdout.write(f"step {step + 1} loss {loss.item():.3f}\n")
            sys.stdout.flush()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
