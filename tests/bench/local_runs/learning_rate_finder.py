"""A recurrent network: a learning-rate finder with a bar of its own, then Lightning's bars of epochs."""

from __future__ import annotations

import torch

from tests.bench.local_runs.bar_text import Bar

EPOCHS, BATCH, LENGTH, TRIALS = 24, 32, 24, 100


def step(model: torch.nn.GRU, optimizer: torch.optim.Optimizer) -> float:
    """Train on one batch of running sums; returns the loss."""
    inputs = torch.randn(BATCH, LENGTH, 8)
    optimizer.zero_grad()
    outputs, _ = model(inputs)
    loss = torch.nn.functional.mse_loss(outputs[:, :, 0], torch.tanh(inputs[:, :, 0].cumsum(1)))
    loss.backward()
    optimizer.step()
    return float(loss)


def train() -> None:
    """Find the rate with the smallest loss, then train with it."""
    torch.manual_seed(6)
    finder, losses = Bar("Finding best initial lr", TRIALS), []
    model = torch.nn.GRU(8, 96, batch_first=True)
    for trial in range(TRIALS):
        losses.append(step(model, torch.optim.SGD(model.parameters(), 1e-5 * 1.12**trial)))
        finder.done(trial + 1)
    best = 1e-5 * 1.12 ** min(range(TRIALS), key=losses.__getitem__)
    model = torch.nn.GRU(8, 96, batch_first=True)
    optimizer = torch.optim.Adam(model.parameters(), min(best, 1e-2))
    for epoch in range(EPOCHS):
        bar = Bar(f"Epoch {epoch}/{EPOCHS - 1}", 150)
        for at in range(150):
            step(model, optimizer)
            bar.done(at + 1)


if __name__ == "__main__":
    train()
