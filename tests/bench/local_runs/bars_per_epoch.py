"""A convolutional network: a bar of tqdm for each epoch's steps, and one for its validation."""

from __future__ import annotations

import torch

from tests.bench.local_runs.bar_text import Bar

EPOCHS, BATCH = 60, 32


def train() -> None:
    """Tell which quarter of an image is the brightest."""
    torch.manual_seed(3)
    images = torch.rand(3_200 + 640, 1, 28, 28)
    labels = torch.nn.functional.avg_pool2d(images, 14).flatten(1).argmax(1)
    convolutions = [torch.nn.Conv2d(1, 8, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Conv2d(8, 16, 5)]
    model = torch.nn.Sequential(*convolutions, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(1_024, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for epoch in range(EPOCHS):
        batches = torch.randperm(3_200).split(BATCH)
        bar = Bar(f"Epoch {epoch + 1}/{EPOCHS}", len(batches))
        for step, batch in enumerate(batches, start=1):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            bar.done(step)
        held_out = torch.arange(3_200, 3_840).split(BATCH)
        bar = Bar("Validation", len(held_out))
        with torch.no_grad():
            for step, batch in enumerate(held_out, start=1):
                model(images[batch])
                bar.done(step)


if __name__ == "__main__":
    train()
