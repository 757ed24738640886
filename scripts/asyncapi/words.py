"""Descriptions in docs/asyncapi.json: of fields without a docstring, of enum members, of codes."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from enum import Enum, IntEnum, IntFlag, StrEnum
from typing import Any, Final

from schemas.cfs import SampleFlag
from schemas.limits import RowStatus
from schemas.reasons import Reason

_ENUMS: Final = (StrEnum, IntEnum, IntFlag)
FIELDS: Final = {
    "node": "Name of the host.",
    "app": "Application.",
    "container": "Key of the container: name, dash, first 12 characters of the id. Unique in the cluster.",
    "incarnation": "Start of the host's service, wall clock in ns: a restarted one has a larger one.",
    "time_ns": "When, by the sender's clock, ns since the epoch.",
    "epoch": "Of the application's owner: rises with each new owner.",
    "seq": "Of the limit update, within its epoch.",
    "reason": "A sentence with the measured values.",
    "run": "Name of the local run.",
    "job": "Name of the training job.",
    "period_us": "CFS period.",
    "host_cpus": "CPUs of the host.",
    "usage_bytes": "Memory that the container uses.",
    "limit_bytes": "Memory limit; -1: unlimited.",
    "limit_before_bytes": "Memory limit before it.",
    "oom_kills": "By the kernel, since the container was found.",
    "container_count": "Containers that take part.",
    "device": "Network device.",
    "mac": "MAC address.",
    "vtep": "Tunnel endpoint, that is the other host.",
    "vni": "VXLAN network identifier.",
    "pref": "As `tc filter show` prints it.",
    "handle": "As `tc filter show` prints it.",
    "in_hw": "Whether the NIC holds it; null: not known.",
    "installed": "Managed filters in the kernel that are in sync.",
    "unmanaged": "Unmanaged filters on the managed ports.",
    "considered": "How many configurations were considered.",
    "level": "Nominal coverage of the intervals.",
    "prices_as_of": "Day of the oldest price used.",
    "warnings": "Warnings in sentences.",
    "budget_usd": "What it may cost at most.",
    "deadline_s": "How long it may take at most.",
    "top": "How many to list.",
}
"""Used for fields without a docstring."""
CODES: Final[dict[str, type[Enum]]] = {
    "quota_reason": Reason,
    "limit_reason": Reason,
    "status": RowStatus,
    "flags": SampleFlag,
}
"""Columns whose numbers are an enum's."""


def enums() -> dict[str, str]:
    """Description of each enum of the contract by name: its docstring and its members."""
    found = [kind for base in _ENUMS for kind in base.__subclasses__() if kind.__module__.startswith("schemas.")]
    return {kind.__name__: "\n".join((inspect.getdoc(kind) or "", "", *members(kind))) for kind in found}


def members(kind: type[Enum]) -> list[str]:
    """One line of Markdown for each member, with its docstring."""
    texts = _below(kind)
    return [f"- `{_written(each)}`" + (f": {texts[each.name]}" if each.name in texts else "") for each in kind]


def _written(member: Any) -> str:
    return member.value if isinstance(member.value, str) else f"{member.value} {member.name}"


def _below(kind: type[Enum]) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    return {
        member.targets[0].id: " ".join(below.value.value.split())
        for member, below in itertools.pairwise(getattr(definition, "body", []))
        if isinstance(member, ast.Assign) and isinstance(member.targets[0], ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }
