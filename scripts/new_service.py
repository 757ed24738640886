"""Make the skeleton of a service: ``python -m scripts.new_service NAME "watches links"``, in a clean checkout.

The skeleton runs and passes every check: it watches the announced applications, answers ``cmd.NAME.state``, has
metrics, a user of its own on a secured server, an image, a place in compose.yaml, manifests for Kubernetes and systemd,
tests and a README. Replace the decision in ``core/decision.py`` by the service's own first, then the message.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from string import Template
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
TEMPLATE: Final = ROOT / "scripts" / "service_template"
"""Files by their path in the tree, with NAME for the service's name and the suffix .txt."""
_NAME: Final = re.compile(r"[a-z]{3,20}")
_SUMMARY_LENGTH: Final = range(10, 81)
_COPIED: Final = "advisor"
"""The service whose credentials' mounts are copied: a Deployment without rights of its own."""


class SkeletonError(ValueError):
    """The skeleton cannot be made; the text says why."""


class Insertion(NamedTuple):
    """Text that an existing file gets behind what a regular expression matches."""

    path: str
    pattern: str
    text: str


_IMPORT: Final = "from schemas.$name import ${Name}StateReply, ${Name}StateRequest\n"
_ENDPOINT: Final = """${NAME}_STATE: Final = Endpoint(
    "$name", "state", ${Name}StateRequest, ${Name}StateReply, "the applications that the $name knows"
)
"""
_METRICS: Final = """
    MetricSpec("turnbuckle_${name}_reconciles_total", "counter", "reconciles since the start"),
    MetricSpec("turnbuckle_${name}_applications", "gauge", "applications as of the last reconcile"),"""
_EXAMPLES: Final = """    ${Name}StateRequest(),
    ${Name}StateReply(apps=("shop",), reconciles=42),
"""
_LAYERS: Final = """
[[tool.importlinter.contracts]]
name = "layers of the $name"
type = "layers"
containers = ["services.$name"]
layers = ["__main__", "service", "core | settings"]
exhaustive = true
"""
_COMPOSE: Final = """
  $name:
    <<: *service
    image: turnbuckle-$name:$${TURNBUCKLE_VERSION:-0.1.0}
    build:
      context: ..
      dockerfile: compose/Dockerfile
      args:
        <<: *bases
        SERVICE: $name
    mem_limit: 256m
    environment:
      <<: *environment
"""
INSERTIONS: Final = (
    Insertion("schemas/registry.py", r"(?m)^from schemas\.cfs import .*\n", _IMPORT),
    Insertion("schemas/registry.py", r"(?ms)^ADVISOR_TRAIN: Final = .*?\n(?=ENDPOINTS)", _ENDPOINT),
    Insertion("schemas/registry.py", r"(?ms)^ENDPOINTS: Final = \(.*?ADVISOR_TRAIN,", " ${NAME}_STATE,"),
    Insertion("schemas/permissions.py", r'(?m)^    ADVISOR = "advisor"\n', '    ${NAME} = "$name"\n'),
    Insertion("schemas/permissions.py", r"(?m)^from schemas\.registry import \(\n", "    ${NAME}_STATE,\n"),
    Insertion("schemas/permissions.py", r"(?m)^READ_ONLY: Final = \(\n", "    ${NAME}_STATE.template,\n"),
    Insertion("schemas/permissions.py", r"(?ms)^    APPS: _BucketUse\(.*?watchers=\(Role\.ALLOCATOR,", " Role.${NAME}"),
    Insertion("schemas/telemetry.py", r"(?ms)^_METRICS: Final = \(.*?,(?=\n\))", _METRICS),
    Insertion("scripts/asyncapi/examples.py", r"(?m)^from schemas\.apps import .*\n", _IMPORT),
    Insertion("scripts/asyncapi/examples.py", r"(?m)^_QUERIES: Final.* = \(\n", _EXAMPLES),
    Insertion(
        "scripts/service_tables.py", r'(?m)^    "advisor": \(Role\.ADVISOR,\),\n', '    "$name": (Role.${NAME},),\n'
    ),
    Insertion(
        "scripts/generate_dashboards.py",
        r'(?m)^    Part\("learning".*\n',
        '    Part("$name", "$Name", ("turnbuckle_${name}_",)),\n',
    ),
    Insertion("pyproject.toml", r'(?m)^    "agent \| allocator \|[^"]*', " | $name"),
    Insertion(
        "pyproject.toml", r'(?ms)^name = "cores are pure.*?"services\.advisor\.core",', ' "services.$name.core",'
    ),
    Insertion("pyproject.toml", r'(?m)^    "services\.fabric", "services\.fastpath",', ' "services.$name",'),
    Insertion("pyproject.toml", r'(?ms)^name = "layers of the console".*?^exhaustive = true\n', _LAYERS),
    Insertion("pyproject.toml", r"(?m)^allocator = \[\].*\n", "$name = []\n"),
    Insertion(
        "scripts/house.py", r'(?ms)^FLOORS: Final = \{\n.*?"services\.advisor": \d+,\n', '    "services.$name": 3,\n'
    ),
    Insertion("compose/compose.yaml", r"(?ms)^  advisor:\n.*?\n(?=\nvolumes:)", _COMPOSE),
    Insertion(
        "compose/Dockerfile",
        r"(?m)^FROM unprivileged AS advisor\n.*\n",
        '\nFROM unprivileged AS $name\nENTRYPOINT ["turnbuckle", "run", "$name"]\n',
    ),
    Insertion("compose/kubernetes/base/kustomization.yaml", r"(?m)^  - advisor\.yaml\n", "  - $name.yaml\n"),
    Insertion(
        "compose/kubernetes/base/kustomization.yaml",
        r"(?m)^  - \{name: turnbuckle-advisor, newTag: (.*)\}\n",
        "  - {name: turnbuckle-$name, newTag: 0.1.0}\n",
    ),
)


def skeleton(name: str, summary: str) -> dict[Path, str]:
    """Every file that the new service adds or changes, by path.

    Args:
        name: of the service, as in ``turnbuckle run NAME``: 3 to 20 small letters.
        summary: what it is for, 10 to 80 characters that go on after "The NAME:".

    Raises:
        SkeletonError: the name or the summary cannot be used, or the tree is not as expected.
    """
    _check(name, summary)
    words = {"name": name, "Name": name.capitalize(), "NAME": name.upper()}
    words |= {"summary": summary, "Summary": summary[0].upper() + summary[1:]}

    files = {
        ROOT / str(path.relative_to(TEMPLATE)).replace("NAME", name).removesuffix(".txt"): path.read_text("utf-8")
        for path in sorted(TEMPLATE.rglob("*.txt"))
    }
    files = {path: Template(text).substitute(words) for path, text in files.items()}
    for insertion in INSERTIONS:
        path = ROOT / insertion.path
        text = files.get(path) or path.read_text("utf-8")
        files[path] = _inserted(insertion, text, Template(insertion.text).substitute(words))
    return files | _credential_mounts(name)


def _check(name: str, summary: str) -> None:
    if not _NAME.fullmatch(name):
        raise SkeletonError(f"the name {name!r} is not of 3 to 20 small letters")
    if (ROOT / "services" / name).exists() or (ROOT / "schemas" / f"{name}.py").exists():
        raise SkeletonError(f"{name} is there already")
    if len(summary) not in _SUMMARY_LENGTH or "\n" in summary or '"' in summary or summary.endswith("."):
        raise SkeletonError("the summary is a line of 10 to 80 characters, without a full stop: it follows 'The NAME:'")


def _inserted(insertion: Insertion, text: str, addition: str) -> str:
    found = list(re.finditer(insertion.pattern, text))
    if len(found) != 1:
        raise SkeletonError(f"{insertion.path}: {len(found)} places match {insertion.pattern!r}, expected one")
    end = found[0].end()
    return text[:end] + addition + text[end:]


def _credential_mounts(name: str) -> dict[Path, str]:
    """Where credentials are mounted: copies of what a service that needs nothing of the host has there."""
    files = {}
    for path, block in (
        (ROOT / "compose" / "nats" / "compose.secure.yaml", rf"(?ms)^  {_COPIED}:\n.*?(?=\n(?:\S|  \S)|\Z)"),
        (
            ROOT / "compose" / "kubernetes" / "components" / "secured" / "kustomization.yaml",
            rf"(?ms)^- target:\n    kind: Deployment\n    name: {_COPIED}\n.*?(?=\n\S|\Z)",
        ),
    ):
        text = path.read_text("utf-8")
        found = re.search(block, text)
        if found is None:
            raise SkeletonError(f"{path.relative_to(ROOT)}: the {_COPIED} was not found")
        files[path] = text[: found.end()] + "\n" + found[0].rstrip().replace(_COPIED, name) + text[found.end() :]
    return files


def main() -> None:
    """Write the skeleton, then what is generated from it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0], allow_abbrev=False)
    parser.add_argument("name", help="3 to 20 small letters, as in: turnbuckle run NAME")
    parser.add_argument("summary", help='what it is for, in a line that follows "The NAME:"')
    arguments = parser.parse_args()
    try:
        files = skeleton(arguments.name, arguments.summary)
    except SkeletonError as error:
        sys.exit(f"new_service: {error}")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    python = [str(path) for path in files if path.suffix == ".py"]
    for command in (
        ["ruff", "check", "--fix", "--quiet", *python],
        ["ruff", "format", "--quiet", *python],
        ["scripts.generate_docs"],
        ["scripts.generate_dashboards"],
        ["scripts.generate_chart"],
        ["scripts.schema_snapshots"],
    ):
        subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=True)  # noqa: S603 - the names above
    for path in files:
        print(path.relative_to(ROOT))  # noqa: T201 - what was written is the output
    core = f"services/{arguments.name}/core/decision.py"
    print(f"\nNow: make check, make test, make test-processes, git diff; then {core}")  # noqa: T201


if __name__ == "__main__":
    main()
