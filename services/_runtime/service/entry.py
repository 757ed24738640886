"""Entry point of `turnbuckle`: `run SERVICE` needs that service only, all other commands the extra ``cli``."""

from __future__ import annotations

import importlib
import sys
from typing import Final

from services._runtime.exit_code import ExitCode, json_error, typed_json
from services._runtime.install_hint import package_missing
from services._runtime.service.interpreter import become, installed_programs

_CLI: Final = "services.cli.main"


def main() -> None:
    """Entry point."""
    words = sys.argv[1:]
    running = words[:1] == ["run"]
    if running and (service := installed_programs().get(next(iter(words[1:]), ""))) is not None:
        become(service, words[2:])
    try:
        command = importlib.import_module(_CLI)
    except ModuleNotFoundError as error:
        sys.exit(_without_cli(error.name or _CLI, words))
    command.main()


def _without_cli(missing: str, words: list[str]) -> int:
    """Output on a host without the CLI."""
    if words[:1] != ["run"]:
        text = package_missing(missing, "cli")
        line = f"turnbuckle {' '.join(words[:1])}: {text}\n"
        sys.stderr.write(json_error(text, ExitCode.UNAVAILABLE) if typed_json(words) else line)
        return ExitCode.UNAVAILABLE
    requested = words[1:] in ([], ["-h"], ["--help"])
    lines = [f"  {service.name:<16}{service.summary}" for service in installed_programs().values()]
    if not requested:
        lines.insert(0, f"there is no service {words[1]!r} here:")
    out = sys.stdout if requested else sys.stderr
    print("usage: turnbuckle run SERVICE [--help | --version | --print-config]", *lines, sep="\n", file=out)
    return 0 if words[1:] and requested else ExitCode.USAGE
