"""The collector's commands: `turnbuckle profile`, `features`, `devices`, `layers`, `emulate`, `vertex`, `jobs import`.

Each is a tool in a process of its own (`tool_shell`), which parses its arguments: the CLI needs none of its packages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from services._runtime.command.tool_command import command_group, single_command
from services._runtime.command.tool_shell import Tool

PROFILE: Final = Tool(
    "services.collector.profiler.run",
    "profile",
    "Run a training command locally for some minutes and record what it uses.",
    examples=(
        "profile --workers 3 --minutes 10 --task my-cnn -- python train.py --batch-size 32",
        "profile --json --no-bus -- python train.py | jq 'select(.event == \"sample\")'",
    ),
)
FEATURES: Final = Tool(
    "services.collector.profiler.features",
    "features",
    "Read a training task's features from its PyTorch module.",
    examples=("features my_package.model:build_model --batch-size 32 --json > features.json",),
)
LAYERS: Final = Tool(
    "services.collector.layers.command",
    "layers",
    "Measure time and memory of a model's layers on one kind of device, for `turnbuckle plan`.",
    examples=(
        "layers model.py:build --data data.py:batches --batch-up-to 8 --device cuda:0 --kind l4 --out l4.json",
        "layers model.py:build --input-shape 3,32,32 --device sandbox:0.5 --out half.json",
    ),
)
DEVICES: Final = Tool(
    "services.collector.devices.command",
    "devices",
    "Find the devices that a training job may use, and write them as the cluster.yaml of `turnbuckle plan`.",
    examples=(
        "devices > cluster.yaml",
        "devices --measure --out cluster.yaml",
        "devices --measure --sandbox 1:2GiB --sandbox 0.5:1GiBx2 --out cluster.yaml",
        "devices --nodes --server nats://10.0.0.1:4222 --json",
        "devices --measure --machines 2 --rank 0 --master 10.0.0.1:29500 --out cluster.yaml",
    ),
)
EMULATE: Final = Tool(
    "services.collector.emulator.commands",
    "emulate",
    "Run a grid of training jobs on emulated machines of this host (root).",
    examples=("emulate docs/examples/grid.yaml --plan", "emulate grid.yaml --out my-measurements"),
)
_VERTEX: Final = Tool("services.collector.cloud.vertex_jobs", "vertex", "")
VERTEX_SUBMIT: Final = replace(
    _VERTEX,
    first=("submit",),
    summary="Submit what is missing of a grid of jobs.",
    examples=("vertex submit docs/examples/vertex.json --dry-run", "vertex submit grid.json --parallel 4"),
)
VERTEX_INGEST: Final = replace(
    _VERTEX,
    first=("ingest",),
    summary="Make records of jobs that have ended.",
    examples=("vertex ingest --billing-table my-project.billing.export --watch",),
)
IMPORT: Final = Tool(
    "services.collector.transfer.import_jobs",
    "jobs",
    "Make records of a CSV or Parquet file's rows, and publish them.",
    ("import",),
    ("jobs import results.csv --mapping mapping.yaml", "jobs import all.parquet"),
)
EXPORT: Final = Tool(
    "services.collector.transfer.import_jobs",
    "jobs",
    "Write records to a file: .parquet (everything) or .csv (jobs).",
    ("export",),
    ("jobs export all.parquet", "jobs export mine.csv --dataset emulated"),
)


profile_command = single_command(PROFILE)
features_command = single_command(FEATURES)
layers_command = single_command(LAYERS)
devices_command = single_command(DEVICES)
emulate_command = single_command(EMULATE)
vertex_app = command_group(
    "Submit a grid of training jobs to Vertex AI, and take in what they took and cost.", VERTEX_SUBMIT, VERTEX_INGEST
)
