"""The training tasks: each is what its features say, and learns."""

from __future__ import annotations

import pkgutil
from functools import cache
from math import prod

import pytest
import torch

from services.collector.emulator.fork_server import describe
from services.collector.emulator.tasks import TASKS

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning")
BATCH = 64


def task_of(name: str):
    return pkgutil.resolve_name(TASKS[name])


@cache
def data_of(name: str):
    return task_of(name).build_data(0)


@cache
def features_of(name: str):
    return describe(task_of(name), data_of(name))


@pytest.mark.parametrize("name", sorted(TASKS))
def test_the_features_are_the_modules(name):
    task = task_of(name)
    data, features = data_of(name), features_of(name)
    assert features.task == name
    assert features.samples_per_epoch == len(data) >= 8 * 192  # of the shipped grid: a step for each of 8 workers
    assert features.parameter_count == sum(p.numel() for p in task.build_model().parameters())
    assert features.input_elements == prod(data.tensors[0].shape[1:])
    assert features.learning_rate > 0
    assert features.optimizer in {"Adam", "AdamW", "SGD"}
    assert features.forward_flops > 0
    assert features.layers
    assert features.attributes == {"kind": task.kind}


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_few_steps_make_the_loss_smaller(name):
    torch.manual_seed(1)
    task = task_of(name)
    *inputs, target = (column[:BATCH] for column in data_of(name).tensors)
    model = task.build_model()
    optimizer = task.build_optimizer(model.parameters())
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = task.loss(model(*inputs), target)
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())  # else the others would wait for it
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[-3:]) < losses[0]


def test_data_follow_from_the_seed():
    for name in TASKS:
        build = task_of(name).build_data
        assert all(torch.equal(a, b) for a, b in zip(build(0).tensors, data_of(name).tensors, strict=True))


def test_tasks_differ_in_what_they_need():
    features = [features_of(name) for name in TASKS]
    counts = [feature.parameter_count for feature in features]
    assert max(counts) > 10 * min(counts)
    flops = [feature.forward_flops for feature in features]
    assert max(flops) > 500 * min(flops)
