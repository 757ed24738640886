"""A perceptron of two layers: a line at the end of each epoch, after its validation."""

from __future__ import annotations

import torch

EPOCHS, BATCH = 380, 64


def train() -> None:
    """Fit classes of a random linear teacher."""
    torch.manual_seed(1)
    inputs = torch.randn(12_000, 128)
    labels = (inputs @ torch.randn(128, 10)).argmax(1)
    model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(EPOCHS):
        loss = torch.zeros(())
        for batch in torch.randperm(10_000).split(BATCH):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            right = (model(inputs[10_000:]).argmax(1) == labels[10_000:]).float().mean().item()
        print(f"Epoch {epoch + 1}/{EPOCHS} loss {loss.item():.4f} validation accuracy {right:.3f}")


if __name__ == "__main__":
    train()
