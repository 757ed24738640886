"""An autoencoder whose data take long to load: shards that are counted, then torchvision's lines."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

EPOCHS, SHARDS, BATCH = 45, 10, 32


def load() -> torch.Tensor:
    """Return spectra of random signals, made in shards."""
    random = np.random.default_rng(4)
    shards = []
    for shard in range(1, SHARDS + 1):
        signals = random.standard_normal((1_800, 4_096)).cumsum(1)
        shards.append(np.log1p(np.abs(np.fft.rfft(signals))[:, :256]))
        print(f"loading shard {shard}/{SHARDS}")
    return torch.tensor(np.concatenate(shards), dtype=torch.float32)


def train() -> None:
    """Fit the autoencoder."""
    torch.manual_seed(4)
    spectra = load()
    sizes = (256, 512, 64, 512, 256)
    layers = [part for pair in pairwise(sizes) for part in (torch.nn.Linear(*pair), torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(EPOCHS):
        batches = torch.randperm(len(spectra)).split(BATCH)
        for step, batch in enumerate(batches):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(spectra[batch]), spectra[batch])
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"Epoch: [{epoch}][{step:3d}/{len(batches)}]  loss: {loss.item():.4f}  lr: 0.001")


if __name__ == "__main__":
    train()
