"""A perceptron on features that the first epoch computes and the later ones find in memory."""

from __future__ import annotations

import numpy as np
import torch

EPOCHS, BATCHES, BATCH = 600, 60, 64


def features(number: int) -> torch.Tensor:
    """Return spectra of one batch's signals, shape ``(BATCH, 128)``."""
    signals = np.random.default_rng(number).standard_normal((BATCH, 1 << 14))
    return torch.tensor(np.log1p(np.abs(np.fft.rfft(signals.cumsum(1)))[:, :128]), dtype=torch.float32)


def train() -> None:
    """Tell whether a spectrum's lower half has more power than its upper one had on average."""
    torch.manual_seed(10)
    model = torch.nn.Sequential(torch.nn.Linear(128, 1_024), torch.nn.ReLU(), torch.nn.Linear(1_024, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    kept: dict[int, torch.Tensor] = {}
    for epoch in range(1, EPOCHS + 1):
        loss = torch.zeros(())
        for number in range(BATCHES):
            if number not in kept:
                kept[number] = features(number)
            inputs = kept[number]
            optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                model(inputs)[:, 0], (inputs[:, :64].sum(1) > inputs[:, :64].sum(1).mean()).float()
            )
            loss.backward()
            optimizer.step()
        print(f"[epoch {epoch}/{EPOCHS}] loss={loss.item():.4f}")


if __name__ == "__main__":
    train()
