"""A transformer whose gradients are added up over four batches: the bar and the logs of transformers' Trainer."""

from __future__ import annotations

import torch

from tests.bench.local_runs.bar_text import Bar

EPOCHS, BATCHES, ACCUMULATED, BATCH, LENGTH = 3, 1_800, 4, 16, 32


def train() -> None:
    """Repeat the token before: a language model of one layer."""
    torch.manual_seed(8)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    embedding, head = torch.nn.Embedding(100, 64), torch.nn.Linear(64, 100)
    model = torch.nn.ModuleList([embedding, layer, head])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    total = EPOCHS * BATCHES // ACCUMULATED
    bar = Bar("", total)
    for batch in range(1, EPOCHS * BATCHES + 1):
        tokens = torch.randint(0, 100, (BATCH, LENGTH))
        scores = head(layer(embedding(tokens)))
        loss = torch.nn.functional.cross_entropy(scores[:, 1:].flatten(0, 1), tokens[:, :-1].flatten()) / ACCUMULATED
        loss.backward()
        if batch % ACCUMULATED == 0:
            optimizer.step()
            optimizer.zero_grad()
            step = batch // ACCUMULATED
            bar.done(step)
            if step % 10 == 0:
                print({"loss": round(loss.item(), 4), "learning_rate": 1e-3, "epoch": round(batch / BATCHES, 2)})


if __name__ == "__main__":
    train()
