"""`turnbuckle profile`, `features`, `emulate`, `vertex`, `prices`, `jobs import|export`: tools of other services.

Their options are theirs: whatever is typed goes on unchanged, ``--help`` shows the tool's own, ``--json`` its lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import typer

from services.cli.pass_on import PassOn
from services.cli.tool_run import Tool, run_tool

PROFILE: Final = Tool(
    "services.collector.local_run",
    "profile",
    examples=(
        "profile --workers 3 --minutes 10 --task my-cnn -- python train.py --batch-size 32",
        "profile --json --no-bus -- python train.py | jq 'select(.event == \"sample\")'",
    ),
)
FEATURES: Final = Tool(
    "services.collector.features",
    "features",
    examples=("features my_package.model:build_model --batch-size 32 --json > features.json",),
)
EMULATE: Final = Tool(
    "services.collector.emulate",
    "emulate",
    examples=("emulate docs/examples/grid.yaml --plan", "emulate grid.yaml --out my-measurements"),
)
VERTEX: Final = Tool(
    "services.collector.vertex_jobs",
    "vertex",
    examples=(
        "vertex submit docs/examples/vertex.json --dry-run",
        "vertex submit grid.json --parallel 4",
        "vertex ingest --billing-table my-project.billing.export --watch",
    ),
)
PRICES: Final = Tool(
    "services.advisor.prices",
    "prices",
    examples=(
        "prices list",
        "prices list --source gcp-vertex",
        "prices refresh --skypilot vms.csv --region us-central1",
        "prices refresh --file my-prices.json",
    ),
)
IMPORT: Final = Tool(
    "services.collector.import_jobs",
    "jobs",
    ("import",),
    ("jobs import results.csv --mapping mapping.yaml", "jobs import all.parquet"),
)
EXPORT: Final = Tool(
    "services.collector.import_jobs",
    "jobs",
    ("export",),
    ("jobs export all.parquet", "jobs export mine.csv --dataset emulated"),
)


def command_for(tool: Tool, text: str) -> Callable[[typer.Context], None]:
    """The command of a tool; `text` is its help in lists of commands."""

    def command(ctx: typer.Context) -> None:
        raise typer.Exit(run_tool(tool, ctx.args))

    command.__doc__ = text
    return command


TOOLS: Final = {
    "profile": command_for(PROFILE, "Run a training command locally for some minutes and record what it uses."),
    "features": command_for(FEATURES, "Read a training task's features from its PyTorch module."),
    "emulate": command_for(EMULATE, "Run a grid of training jobs on emulated machines of this host (root)."),
    "vertex": command_for(VERTEX, "Submit a grid of training jobs to Vertex AI, and take in what they took and cost."),
    "prices": command_for(PRICES, "The price catalogue: dated snapshots, listed and refreshed."),
}


def add_tools(app: typer.Typer) -> None:
    """Make every tool a command."""
    for name, command in TOOLS.items():
        app.command(name, cls=PassOn)(command)
