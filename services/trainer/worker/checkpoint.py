"""Checkpoints that do not depend on the plan: full tensors by their names in the model, the optimizer's moments alike.

Each is a directory ``step-N`` with a file ``progress.json`` and, for each layer, a directory that
`torch.distributed.checkpoint` wrote: ``model.NAME`` and ``optimizer.NAME.MOMENT``. A layer is gathered, written by
rank 0 and freed before the next: rank 0 needs room for one layer's parameters and moments. Only rank 0 reads and
writes, so no file system has to be shared; a directory gets its name once it is complete and on the disk.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from services._runtime.atomic_file import write_atomically
from services.trainer.worker.engine import Block, Engine, Piece
from services.trainer.worker.gather import broadcast_tensor, broadcast_value, rank_failures

KEPT: Final = 2
"""Checkpoints in a directory: the newest ones."""
_PROGRESS: Final = "progress.json"
_PREFIX: Final = "step-"
_COUNT: Final = "step"
"""Adam's and AdamW's count of steps: all that an accepted optimizer (`check_optimizer`) has once for all elements."""


class CheckpointError(Exception):
    """A checkpoint cannot be read or written, or is of another model; the message says which."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a training is."""

    step: int
    """Steps done."""
    samples: int
    """Samples that they had, of all ranks."""
    seed: int
    """Of the order of samples."""


# It says at every call without collectives that it works without them.
warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized", UserWarning)


def newest(directory: Path) -> Path | None:
    """The complete checkpoint with the most steps; None: there is none."""
    found = [path for path in directory.glob(f"{_PREFIX}*") if (path / _PROGRESS).is_file()]
    return max(found, key=lambda path: int(path.name.removeprefix(_PREFIX)), default=None)


def save(directory: Path, engine: Engine, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Write a checkpoint, and remove older ones. A collective.

    Raises:
        CheckpointError: it cannot be written.
        RankFailedError: another rank fails meanwhile.
    """
    final, writes = directory / f"{_PREFIX}{progress.step:09d}", dist.get_rank() == 0
    draft = directory / f".{final.name}"
    try:
        if writes:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
        for number, block in enumerate(engine.blocks):
            content = _content(block, optimizer)
            if writes and content:
                save_tensors(content, checkpoint_id=draft / f"layer-{number:04d}", no_dist=True)
        if writes:
            write_atomically(draft / _PROGRESS, json.dumps(asdict(progress)), to_disk=True)
            draft.rename(final)
            _to_disk(directory)
            _remove_older(directory)
    except (OSError, CheckpointException) as error:
        raise CheckpointError(f"{final} cannot be written: {_cause(error)}") from error
    with rank_failures():
        dist.barrier()


def load(directory: Path, engine: Engine, optimizer: torch.optim.Optimizer) -> Progress | None:
    """Continue at the newest checkpoint; None: there is none. A collective, whatever plan it was saved under.

    Raises:
        CheckpointError: it cannot be read, or is of another model.
        RankFailedError: another rank fails meanwhile.
    """
    reader = _open(directory) if dist.get_rank() == 0 else None
    found = broadcast_value([None if reader is None else reader.progress])[0]
    if found is None:
        return None
    with torch.no_grad():
        for block in engine.blocks:
            for piece in block.pieces:
                _load_piece(piece, optimizer, reader)
            _load_constants(block.constants, reader)
    return found


def step_count(optimizer: torch.optim.Optimizer, value: Tensor, parameter: Tensor) -> Tensor:
    """An optimizer's count of its steps where it keeps it, wherever it was saved.

    On the parameter's device with ``fused`` or ``capturable``, else on the host, as `torch.optim.Optimizer` itself does
    with a state that it loads: a kernel that finds it elsewhere fails.
    """
    (group,) = optimizer.param_groups  # `check_optimizer`
    is_on_device = bool(group.get("fused") or group.get("capturable"))
    return value.to(parameter.device if is_on_device else "cpu")


def read_moments(directory: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, dict[str, Tensor]]:
    """What the optimizer has kept in the newest checkpoint, by its name of it and by parameter. No collective.

    Args:
        directory: of the checkpoints.
        shapes: of the model's trainable parameters, by their names.

    Returns:
        Nothing: there is no checkpoint, or its optimizer had made no step.

    Raises:
        CheckpointError: it cannot be read, or is of another model.
    """
    reader = _open(directory)
    if reader is None:
        return {}
    return {
        entry: reader.tensors("optimizer", shapes, f".{entry}") if value is None else dict.fromkeys(shapes, value)
        for entry, value in reader.entries(shapes).items()
    }


def _content(block: Block, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Full tensors of a block by key; every rank takes part, rank 0 keeps them."""
    content = {f"model.{name}": value for name, value in block.constants.items()}
    for piece in block.pieces:
        content |= {f"model.{name}": value for name, value in piece.whole(piece.parameter).items()}
        for entry, held in optimizer.state.get(piece.parameter, {}).items():
            if not isinstance(held, Tensor):
                continue
            # A count of steps is one number for all elements.
            full = dict.fromkeys(piece.shapes, held) if entry == _COUNT else piece.whole(held)
            content |= {f"optimizer.{name}.{entry}": value for name, value in full.items()}
    return {key: value.detach().cpu() for key, value in content.items()} if dist.get_rank() == 0 else {}


def _load_piece(piece: Piece, optimizer: torch.optim.Optimizer, reader: _Reader | None) -> None:
    piece.parameter.copy_(piece.part(None if reader is None else reader.tensors("model", piece.shapes)))
    entries = broadcast_value(None if reader is None else reader.entries(piece.shapes))
    for entry, value in entries.items():
        if value is not None:
            optimizer.state[piece.parameter][entry] = step_count(optimizer, value, piece.parameter)
            continue
        full = None if reader is None else reader.tensors("optimizer", piece.shapes, f".{entry}")
        optimizer.state[piece.parameter][entry] = piece.part(full)


def _load_constants(constants: Mapping[str, Tensor], reader: _Reader | None) -> None:
    full = None if reader is None else reader.tensors("model", {name: held.shape for name, held in constants.items()})
    for name, held in constants.items():
        held.copy_(broadcast_tensor(torch.empty_like(held) if full is None else full[name].to(held)))


class _Reader:
    """One checkpoint, on rank 0."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.progress = Progress(**json.loads((path / _PROGRESS).read_text(encoding="utf-8")))
        self._places: dict[str, tuple[Path, Any]] = {}
        for layer in sorted(path.glob("layer-*")):
            for key, stored in FileSystemReader(layer).read_metadata().state_dict_metadata.items():
                self._places[key] = (layer, stored)

    def tensors(self, kind: str, shapes: Mapping[str, Sequence[int]], ending: str = "") -> dict[str, Tensor]:
        """By name; `kind`: model or optimizer.

        Raises:
            CheckpointError: it has no such tensor, or one of another shape.
        """
        found: dict[str, Tensor] = {}
        wanted: dict[Path, dict[str, Tensor]] = {}
        for name, shape in shapes.items():
            key = f"{kind}.{name}{ending}"
            if key not in self._places:
                raise CheckpointError(f"{self.path} has no {key}: it is of another model")
            layer, stored = self._places[key]
            if tuple(stored.size) != tuple(shape):
                shapes_differ = f"{key} has shape {tuple(stored.size)} instead of {tuple(shape)}"
                raise CheckpointError(f"{self.path}: {shapes_differ}: it is of another model")
            found[name] = torch.empty(stored.size, dtype=stored.properties.dtype)
            wanted.setdefault(layer, {})[key] = found[name]
        for layer, state in wanted.items():
            load_tensors(state, checkpoint_id=layer, no_dist=True)
        return found

    def entries(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor | None]:
        """What the optimizer has of each parameter: a number (such as its steps), or None for one value per element."""
        name = next(iter(shapes))
        ahead = f"optimizer.{name}."
        names = sorted(key.removeprefix(ahead) for key in self._places if key.startswith(ahead))
        # By name, not by shape: a moment of a parameter without dimensions has none either.
        return {
            entry: self.tensors("optimizer", {name: ()}, f".{entry}")[name] if entry == _COUNT else None
            for entry in names
        }


def _open(directory: Path) -> _Reader | None:
    path = newest(directory)
    if path is None:
        return None
    try:
        return _Reader(path)
    except (OSError, ValueError, TypeError, CheckpointException) as error:
        raise CheckpointError(f"{path} cannot be read: {_cause(error)}") from error


def _remove_older(directory: Path) -> None:
    complete = sorted(path for path in directory.glob(f"{_PREFIX}*") if path.is_dir())
    for path in complete[:-KEPT]:
        shutil.rmtree(path, ignore_errors=True)


def _to_disk(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cause(error: BaseException) -> str:
    """The text of the first error: torch wraps a rank's into one of its own."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.strip().partition("\n")[0] or type(error).__name__
