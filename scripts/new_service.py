"""Make the skeleton of a service: ``python -m scripts.new_service NAME "watches links"``, in a clean checkout.

The skeleton runs and passes every check: it watches the announced applications, answers ``cmd.NAME.state``, has
metrics, a user of its own on a secured server, an image, a place in compose.yaml, manifests for Kubernetes and systemd,
tests and a README. Replace the decision in ``core/decision.py`` by the service's own first, then the message.

Only new files are written by hand of a template; what other files have of a service is generated from them, by
`make docs`. To take a service away again delete what is listed, and run `make docs snapshots ARGS=--allow-breaking`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from string import Template
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
TEMPLATE: Final = ROOT / "scripts" / "service_template"
"""Files by their path in the tree, with NAME for the service's name and the suffix .txt."""
_NAME: Final = re.compile(r"[a-z]{3,20}")
_SUMMARY_LENGTH: Final = range(10, 81)


class SkeletonError(ValueError):
    """The skeleton cannot be made; the text says why."""


def skeleton(name: str, summary: str) -> dict[Path, str]:
    """Every file that the new service adds, by path.

    Args:
        name: of the service, as in ``turnbuckle run NAME``: 3 to 20 small letters.
        summary: what it is for, 10 to 80 characters that go on after "The NAME:".

    Raises:
        SkeletonError: the name or the summary cannot be used.
    """
    _check(name, summary)
    words = {"name": name, "Name": name.capitalize(), "NAME": name.upper()}
    words |= {"summary": summary, "Summary": summary[0].upper() + summary[1:]}
    files = {
        ROOT / str(path.relative_to(TEMPLATE)).replace("NAME", name).removesuffix(".txt"): path.read_text("utf-8")
        for path in sorted(TEMPLATE.rglob("*.txt"))
    }
    return {path: Template(text).substitute(words) for path, text in files.items()}


def _check(name: str, summary: str) -> None:
    if not _NAME.fullmatch(name):
        raise SkeletonError(f"the name {name!r} is not of 3 to 20 small letters")
    if any((ROOT / path).exists() for path in (f"services/{name}", f"schemas/{name}.py")):
        raise SkeletonError(f"{name} is there already")
    if len(summary) not in _SUMMARY_LENGTH or "\n" in summary or '"' in summary or summary.endswith("."):
        raise SkeletonError("the summary is a line of 10 to 80 characters, without a full stop: it follows 'The NAME:'")


def main() -> None:
    """Write the skeleton, then what is generated from it."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.new_service",
        description=(__doc__ or "").partition("\n\n")[0],
        epilog='example: python -m scripts.new_service throttler "keeps links and jobs apart"',
        allow_abbrev=False,
    )
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
        ["scripts.generate_roles"],
        ["scripts.generate_services"],
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
