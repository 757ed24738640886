"""An ordinary training script: a small network learns scikit-learn's digits with DistributedDataParallel.

Alone: ``python docs/examples/train.py --epochs 3``. In a local run, as one master and two workers:
``turnbuckle profile --workers 3 --minutes 10 -- python docs/examples/train.py``. Its features:
``turnbuckle features docs/examples/train.py:build --input-shape 1,8,8``.

As a job that may be preempted (``preemption: checkpoint``): after SIGTERM it saves its state at the end of the epoch,
and goes on from there when it is started again. That takes `resume`, `save`, and the lines of `main` with `stop`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def build() -> nn.Module:
    """Images of shape (batch, 1, 8, 8) to scores of ten digits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def checkpoint_file() -> Path | None:
    """Where the state is saved when the job is preempted; None: it is no such job."""
    directory = os.environ.get("TURNBUCKLE_CHECKPOINT_DIR")
    return Path(directory, "digits.pt") if directory else None


def resume(checkpoint: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the state, if one was saved, and say that the training begins; returns the epochs that are done."""
    epochs = 0
    if checkpoint.exists():
        network_state, optimizer_state, random_state, epochs = torch.load(checkpoint)
        network.load_state_dict(network_state)
        optimizer.load_state_dict(optimizer_state)
        torch.set_rng_state(random_state)
    Path(os.environ["TURNBUCKLE_READY_FILE"]).touch()
    return epochs


def save(checkpoint: Path, network: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
    """Save the state, whole or not at all; the first worker's is everybody's."""
    if os.environ.get("RANK", "0") == "0":
        state = (network.state_dict(), optimizer.state_dict(), torch.get_rng_state(), epochs)
        torch.save(state, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").replace(checkpoint)


def main() -> None:
    """Train for some epochs; each worker sees its share of the images."""
    parser = argparse.ArgumentParser(description="Learn the digits.")
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    if distributed := "RANK" in os.environ:
        dist.init_process_group("gloo")
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    sampler = DistributedSampler(data, shuffle=True) if distributed else None
    loader = DataLoader(data, arguments.batch_size, sampler=sampler, shuffle=sampler is None, drop_last=True)
    network = DistributedDataParallel(build()) if distributed else build()
    optimizer = torch.optim.Adam(network.parameters(), lr=arguments.learning_rate)

    stopping = threading.Event()
    first_epoch = 0
    if checkpoint := checkpoint_file():
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
        first_epoch = resume(checkpoint, network, optimizer)

    for epoch in range(first_epoch, arguments.epochs):
        if sampler:
            sampler.set_epoch(epoch)
        began_s, right, seen = time.monotonic(), 0, 0
        for batch, target in loader:
            scores = network(batch)
            loss = nn.functional.cross_entropy(scores, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int((scores.argmax(1) == target).sum())
            seen += len(target)
        print(f"epoch {epoch + 1}: accuracy {right / seen:.3f} in {time.monotonic() - began_s:.2f} s", flush=True)
        stop = torch.tensor(float(stopping.is_set()))
        if distributed:
            dist.all_reduce(stop)  # the signal reaches all workers, but not all in the same epoch
        if stop and checkpoint and epoch + 1 < arguments.epochs:
            save(checkpoint, network, optimizer, epoch + 1)
            sys.exit(128 + signal.SIGTERM)
    print(f"last loss {loss.item():.9f}", flush=True)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
