"""`turnbuckle profile`, `features`, `emulate`, `vertex`, `prices`, `jobs import|export`: tools of other services.

Their options are theirs: whatever is typed goes on unchanged, ``--help`` shows what they take, ``--json`` their lines.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import typer

from services.cli.toolkit.tool_command import add_tool, examples_text
from services.cli.toolkit.tool_run import Tool

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
_PRICES: Final = Tool("services.advisor.prices", "prices", "")
PRICES_LIST: Final = replace(
    _PRICES,
    first=("list",),
    summary="List snapshots, or with --source the machines of the newest one.",
    examples=("prices list", "prices list --source gcp-vertex"),
)
PRICES_REFRESH: Final = replace(
    _PRICES,
    first=("refresh",),
    summary="Take a new snapshot in.",
    examples=(
        "prices refresh --skypilot vms.csv --region us-central1",
        "prices refresh --file my-prices.json",
    ),
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


def _group(text: str, *tools: Tool) -> typer.Typer:
    epilog = "\nExamples:\n" + "".join(examples_text(tool).partition("Examples:\n")[2] for tool in tools)
    made = typer.Typer(help=text, epilog=epilog, no_args_is_help=True, rich_markup_mode="rich")
    for tool in tools:
        add_tool(made, tool, tool.first[0])
    return made


def _single(tool: Tool) -> Any:
    made = typer.Typer(add_completion=False, rich_markup_mode="rich")
    add_tool(made, tool, tool.name)
    return typer.main.get_command(made)


profile_command = _single(PROFILE)
features_command = _single(FEATURES)
emulate_command = _single(EMULATE)
vertex_app = _group(
    "Submit a grid of training jobs to Vertex AI, and take in what they took and cost.", VERTEX_SUBMIT, VERTEX_INGEST
)
prices_app = _group("The price catalogue: dated snapshots, listed and refreshed.", PRICES_LIST, PRICES_REFRESH)
