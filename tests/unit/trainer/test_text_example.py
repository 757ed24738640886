"""docs/examples/trainer/text.py: a model that the engines train, and data that it can learn from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from services._jobs.user_module import load
from services.trainer.worker.refusals import check_model, check_optimizer, layered_chain

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "trainer" / "text.py"


def of_example(name: str) -> Any:
    return load(f"{EXAMPLE}:{name}")


def test_each_target_is_the_byte_that_follows() -> None:
    data = of_example("batches")()
    (first, expected), (second, _) = data[0], data[1]

    assert first.shape == expected.shape == (256,)
    assert torch.equal(first[1:], expected[:-1])
    assert expected[-1] == second[0]  # samples stand one after the other in the text


def test_engines_train_its_chain_and_cut_its_optimizer() -> None:
    model = of_example("build")()
    parameters = list(model.parameters())

    check_model(model)
    assert [name for name, _ in layered_chain(model)] == ["0", "1", "2", "3", "4", "5"]
    assert check_optimizer(of_example("optimizer")(parameters), parameters)


def test_scores_do_not_know_the_bytes_that_they_are_to_guess() -> None:
    torch.manual_seed(0)
    model = of_example("build")()
    text = torch.randint(256, (1, 256))
    changed = text.clone()
    changed[0, 200:] = (changed[0, 200:] + 1) % 256
    with torch.no_grad():
        before, after = model(text), model(changed)

    assert torch.allclose(before[..., :200], after[..., :200], atol=1e-5)
    assert not torch.allclose(before[..., 200:], after[..., 200:], atol=1e-2)


def test_the_loss_is_a_sum_over_samples() -> None:
    """Of equal scores for 256 bytes each byte's is ln 256 = 5.5452; of two samples their sum is 11.0904."""
    loss = of_example("loss")(torch.zeros(2, 256, 256), torch.zeros(2, 256, dtype=torch.int64))

    assert loss.item() == pytest.approx(11.0904, abs=1e-3)
