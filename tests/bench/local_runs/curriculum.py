"""A recurrent network on sequences that grow: its last steps take several times as long as its first ones."""

from __future__ import annotations

import torch

STEPS, BATCH, SHORTEST, LONGEST = 8_000, 16, 8, 64


def train() -> None:
    """Remember the first input until the sequence's end."""
    torch.manual_seed(9)
    model, head = torch.nn.LSTM(16, 96, batch_first=True), torch.nn.Linear(96, 16)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], 1e-3)
    for step in range(1, STEPS + 1):
        length = SHORTEST + (LONGEST - SHORTEST) * step // STEPS
        inputs = torch.randn(BATCH, length, 16)
        optimizer.zero_grad()
        outputs, _ = model(inputs)
        loss = torch.nn.functional.mse_loss(head(outputs[:, -1]), inputs[:, 0])
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"iteration {step}/{STEPS} length {length} loss {loss.item():.4f}")


if __name__ == "__main__":
    train()
