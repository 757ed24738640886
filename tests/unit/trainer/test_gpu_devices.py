"""What differs on GPUs and a processor can show: which GPU a rank takes, and where an optimizer keeps its count."""

from __future__ import annotations

import pytest
import torch

from services.trainer.worker.checkpoint import step_count
from services.trainer.worker.plan_file import RefusedError
from services.trainer.worker.process_group import device_of


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int, local_rank: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))


@pytest.mark.parametrize(
    ("wanted", "gpus", "local_rank", "device"),
    [
        ("auto", 2, 1, "cuda:1"),
        ("cuda", 1, 0, "cuda:0"),
        ("auto", 0, 3, "cpu"),
        ("cpu", 2, 3, "cpu"),
    ],
)
def test_each_rank_of_a_machine_takes_its_own_gpu(
    monkeypatch: pytest.MonkeyPatch, wanted: str, gpus: int, local_rank: int, device: str
) -> None:
    with_gpus(monkeypatch, gpus, local_rank)

    assert device_of(wanted) == torch.device(device)


@pytest.mark.parametrize(("wanted", "gpus", "seen"), [("auto", 1, "1 GPU on"), ("cuda", 3, "3 GPUs on")])
def test_a_rank_without_a_gpu_of_its_own_is_refused(
    monkeypatch: pytest.MonkeyPatch, wanted: str, gpus: int, seen: str
) -> None:
    with_gpus(monkeypatch, gpus, local_rank=gpus)

    with pytest.raises(RefusedError, match=f"torch sees {seen} this machine, too few for process {gpus + 1}: .*cpu"):
        device_of(wanted)


@pytest.mark.parametrize(
    ("options", "device"), [({"fused": True}, "meta"), ({"capturable": True}, "meta"), ({"foreach": True}, "cpu")]
)
def test_a_loaded_count_of_steps_is_where_the_optimizer_keeps_it(options: dict[str, bool], device: str) -> None:
    """The meta device stands for a GPU: a tensor there is not on the host."""
    parameter = torch.nn.Parameter(torch.zeros(3, device="meta"))
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))])
    optimizer.param_groups[0].update(options)

    assert step_count(optimizer, torch.tensor(7.0), parameter).device == torch.device(device)
