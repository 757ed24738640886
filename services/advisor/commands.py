"""The advisor's commands (`turnbuckle prices`), its shipped data set, and its variables for `advise --example`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from services._runtime.command.tool_command import command_group
from services._runtime.command.tool_shell import Tool

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


prices_app = command_group("The price catalogue: dated snapshots, listed and refreshed.", PRICES_LIST, PRICES_REFRESH)


def shipped_dataset() -> Path | None:
    """The Parquet file of measured jobs that this installation ships; None: there is none."""
    return next(iter(sorted((Path(__file__).parent / "data").glob("*.parquet"))), None)


def held_out_environment(dataset: Path, tasks: Sequence[str]) -> dict[str, str]:
    """Variables of an advisor that trains at once on one data set without these tasks."""
    from services.advisor.settings import AdvisorSettings  # noqa: PLC0415 - quick --help: pydantic

    values = {"datasets": str(dataset), "held_out_tasks": ",".join(tasks), "retrain_debounce_s": "0"}
    return {AdvisorSettings.variable(field): value for field, value in values.items()}
