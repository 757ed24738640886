"""Features of a training task (thesis Table 4.1), from its module, its optimizer and two samples of its data."""

from __future__ import annotations

from torch.utils.data import TensorDataset

from schemas.jobs import TaskFeatures
from services.collector.emulator.tasks.task import TrainingTask
from services.collector.profiler.torch_features import BATCH, measure


def describe(task: TrainingTask, data: TensorDataset) -> TaskFeatures:
    """What an advisor may know before a run."""
    model = task.build_model()
    optimizer = task.build_optimizer(model.parameters())
    found = measure(model, tuple(column[:BATCH] for column in data.tensors[:-1]))
    return TaskFeatures(
        task=task.name,
        parameter_count=found.parameter_count,
        frozen_parameter_count=found.frozen_parameter_count,
        layers=found.layers,
        input_elements=found.input_elements,
        output_elements=found.output_elements,
        optimizer=type(optimizer).__name__,
        learning_rate=optimizer.defaults["lr"],
        epochs=task.epochs,
        samples_per_epoch=len(data),
        forward_flops=found.forward_flops,
        attributes={"kind": task.kind},
    )
