"""Server discovery as in the `nats` command: URL, named context (NATS ADR-21), selected context, default."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from services._runtime.bus.options import DEFAULT_URL, BusOptions


class ContextError(ValueError):
    """A missing or unusable context; the text names it and the reason."""


def resolve(
    url: str | None = None, context: str | None = None, *, environ: Mapping[str, str] | None = None
) -> BusOptions:
    """Connection options from the first of these that is given.

    ``url``, ``context``, ``NATS_URL``, ``NATS_CONTEXT``, the selected context, nats://127.0.0.1:4222.

    A ``url`` beside a ``context`` replaces only the context's servers. `BusOptions.origin` names what was chosen.

    Raises:
        ContextError: the context does not exist or cannot be used.
    """
    env = os.environ if environ is None else environ
    if context:
        options = load_context(context, env)
        return replace(options, servers=_split(url), origin="the URL given") if url else options
    if url:
        return BusOptions(servers=_split(url), origin="the URL given")
    if from_environment := env.get("NATS_URL"):
        return BusOptions(servers=_split(from_environment), origin="NATS_URL")
    if named := env.get("NATS_CONTEXT"):
        return load_context(named, env)
    if selected := selected_context(env):
        return load_context(selected, env)
    return BusOptions(servers=(DEFAULT_URL,), origin="the default")


def context_names(environ: Mapping[str, str] | None = None) -> list[str]:
    """Names of the contexts that exist."""
    directory = _configuration(os.environ if environ is None else environ) / "context"
    return sorted(path.stem for path in directory.glob("*.json"))


def selected_context(environ: Mapping[str, str] | None = None) -> str | None:
    """Name of the context chosen with ``nats context select``, or None."""
    try:
        text = (_configuration(os.environ if environ is None else environ) / "context.txt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text.strip() or None


def load_context(name: str, environ: Mapping[str, str] | None = None) -> BusOptions:
    """The options in a context.

    Raises:
        ContextError: it does not exist or cannot be used.
    """
    env = os.environ if environ is None else environ
    path = _configuration(env) / "context" / f"{name}.json"
    if os.sep in name or not path.is_file():
        near = difflib.get_close_matches(name, context_names(env), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ContextError(f"no NATS context {name!r} in {path.parent}{hint}")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ContextError(f"NATS context {path} cannot be read: {error}") from error
    if not isinstance(fields, dict):
        raise ContextError(f"NATS context {path} is no JSON object")
    if fields.get("nsc"):
        raise ContextError(f"NATS context {path} takes its credentials from nsc: export them to a creds file")

    def text(key: str) -> str | None:
        return _text(fields, key, path)

    return BusOptions(
        servers=_split(text("url") or DEFAULT_URL),
        origin=f"context {name}",
        user=text("user"),
        password=text("password"),
        token=text("token"),
        creds_file=text("creds"),
        nkey_seed_file=text("nkey"),
        tls_ca_file=text("ca"),
        tls_cert_file=text("cert"),
        tls_key_file=text("key"),
        tls_first=True if fields.get("tls_first") is True else None,
    )


def _text(fields: dict[str, Any], key: str, path: Path) -> str | None:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise ContextError(f"NATS context {path}: {key} is no text")
    return value or None


def _configuration(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CONFIG_HOME")
    home = Path(environ.get("HOME", "~")).expanduser()
    return (Path(base) if base else home / ".config") / "nats"


def _split(urls: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in urls.split(",") if part.strip())
