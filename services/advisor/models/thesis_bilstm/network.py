"""The networks of Figures 4.2 and 4.3, as the text describes them.

Static features go through dense layers; the series of CPU, memory, and network in and out each through a bidirectional
LSTM and a dense layer; all four are joined and go through dense layers to one output. A dense layer is linear with a
ReLU; where it is normalised, that comes after the ReLU. The thesis gives no sizes ("2-3 layers in both stages"): they
are ours. A task without series gives zeros in place of the LSTMs' states (and a mask among its static inputs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import nn
from torch.nn import functional

from schemas.predictions import Objective
from services.advisor.models.thesis_bilstm.inputs import Rows, groups


class Norm(StrEnum):
    """Where batch normalisation follows dense layers."""

    NONE = "none"
    STATIC = "static"
    """After those of the static features."""
    EVERYWHERE = "everywhere"
    """After all but the output."""


class Output(StrEnum):
    """The last activation."""

    SOFTPLUS = "softplus"
    """Positive with a gradient everywhere: the default in place of the thesis' ReLU."""
    RELU = "relu"
    """As in the thesis. Where it is 0 for all jobs at once, nothing is learned any more."""
    SIGMOID = "sigmoid"
    """Of the classifiers."""

    def of(self, before: torch.Tensor) -> torch.Tensor:
        """Apply it."""
        if self is Output.SIGMOID:
            return torch.sigmoid(before)
        return functional.relu(before) if self is Output.RELU else functional.softplus(before)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Units per layer."""

    static: tuple[int, ...] = (64, 32)
    lstm: int = 16
    """Per direction."""
    series: int = 16
    joined: tuple[int, ...] = (64, 32)
    additional: int = 16
    """Of the additional dense layer that the time's networks have before the output."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One of the four networks."""

    objective: Objective
    output: Output
    norm: Norm
    static_width: int
    sizes: Sizes = Sizes()

    @staticmethod
    def regression(objective: Objective, output: Output, static_width: int) -> Architecture:
        """Figure 4.2: batch normalisation in the time's static part only."""
        norm = Norm.STATIC if objective is Objective.TIME else Norm.NONE
        return Architecture(objective, output, norm, static_width)


def _dense(inputs: int, units: Sequence[int], *, norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in units:
        layers += [nn.Linear(inputs, width), nn.ReLU(), *([nn.BatchNorm1d(width)] if norm else [])]
        inputs = width
    return nn.Sequential(*layers)


class SeriesEncoder(nn.Module):
    """Bidirectional LSTM and a dense layer for one group of series."""

    def __init__(self, channels: Sequence[int], sizes: Sizes, *, norm: bool) -> None:
        super().__init__()
        self.columns = list(channels)
        self.lstm = nn.LSTM(len(channels), sizes.lstm, bidirectional=True)
        self.dense = _dense(2 * sizes.lstm, (sizes.series,), norm=norm)

    def forward(self, series: torch.Tensor, of: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        """Return one embedding per row.

        The LSTM runs once per task; its last states are then copied to the rows, so that the dense layer's batch
        normalisation counts rows and not tasks: the same as running it once per row.

        Args:
            series: Shape ``(tasks, steps, channels)``; may be empty.
            of: Index of each row's series.
            known: 1 where the row has series, else 0, shape ``(rows, 1)``.
        """
        if len(series):
            _, (last, _) = self.lstm(series[:, :, self.columns].transpose(0, 1).contiguous())
            states = torch.cat((last[0], last[1]), dim=1).index_select(0, of) * known
        else:
            states = known.expand(-1, 2 * self.lstm.hidden_size)
        return self.dense(states)  # type: ignore[no-any-return]


class Network(nn.Module):
    """One network; `forward` returns what stands before the last activation."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        sizes, norm = architecture.sizes, architecture.norm
        everywhere = norm is Norm.EVERYWHERE
        self.output = architecture.output
        self.static = _dense(architecture.static_width, sizes.static, norm=norm is not Norm.NONE)
        self.series = nn.ModuleDict(
            {name: SeriesEncoder(channels.tolist(), sizes, norm=everywhere) for name, channels in groups().items()}
        )
        joined = sizes.static[-1] + len(self.series) * sizes.series
        self.joined = _dense(joined, sizes.joined, norm=everywhere)
        additional = (sizes.additional,) if architecture.objective is Objective.TIME else ()
        self.additional = _dense(sizes.joined[-1], additional, norm=everywhere)
        self.last = nn.Linear((*sizes.joined, *additional)[-1], 1)

    def forward(self, rows: Rows) -> torch.Tensor:
        """Return one number per row, before the last activation."""
        present, at = torch.unique(rows.task.clamp(min=0), return_inverse=True)
        known = (rows.task >= 0).to(rows.static.dtype)[:, None]
        series = rows.series[present] if len(rows.series) else rows.series
        parts = [self.static(rows.static), *(one(series, at, known) for one in self.series.values())]
        return self.last(self.additional(self.joined(torch.cat(parts, dim=1))))[:, 0]  # type: ignore[no-any-return]


def initialised(architecture: Architecture, random: torch.Generator) -> Network:
    """Return a network with drawn weights. The process' own random state is not touched.

    Glorot for dense layers and the LSTM's inputs, orthogonal for its recurrence, biases 0 but 1 at its forget gates.
    """
    with torch.device("meta"):  # no draw from the global generator
        network = Network(architecture)
    network.to_empty(device="cpu")
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, generator=random)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LSTM):
            _initialise_lstm(module, random)
    return network


def _initialise_lstm(lstm: nn.LSTM, random: torch.Generator) -> None:
    for name, values in lstm.named_parameters():
        if name.startswith("weight_ih"):
            nn.init.xavier_uniform_(values, generator=random)
        elif name.startswith("weight_hh"):
            nn.init.orthogonal_(values, generator=random)
        else:
            nn.init.zeros_(values)
            if name.startswith("bias_ih"):
                with torch.no_grad():
                    values[lstm.hidden_size : 2 * lstm.hidden_size] = 1.0
