"""An ordinary training script: a small network learns scikit-learn's digits with DistributedDataParallel.

Alone: ``python docs/examples/train.py --epochs 3``. In a local run, as one master and two workers:
``turnbuckle profile --workers 3 --minutes 10 -- python docs/examples/train.py``. Its features:
``turnbuckle features docs/examples/train.py:build --input-shape 1,8,8``.
"""

from __future__ import annotations

import argparse
import os
import time

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

    for epoch in range(arguments.epochs):
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
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
