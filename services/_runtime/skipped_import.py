"""Keeps libraries from importing what we make no use of: imports are most of a service's start."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from typing import Any


@contextmanager
def not_imported(package: str) -> Iterator[None]:
    """While this lasts, ``import package`` fails as if it were not installed."""
    modules: MutableMapping[str, Any] = sys.modules
    before = {package: modules[package]} if package in modules else {}
    modules[package] = None  # the import system's own mark: the module cannot be imported
    try:
        yield
    finally:
        del modules[package]
        modules.update(before)


@contextmanager
def bare_packages(*names: str) -> Iterator[None]:
    """While this lasts, modules of these packages are imported without the packages' own ``__init__``.

    For packages that import all that they hold. Whoever imports such a package later gets the whole one.

    Args:
        names: parents first.

    Raises:
        ModuleNotFoundError: a package is not installed.
    """
    made = [name for name in names if name not in sys.modules]
    try:
        for name in made:
            sys.modules[name] = module_from_spec(_bare(name))
        yield
    finally:
        for name in made:
            sys.modules.pop(name, None)


def _bare(name: str) -> ModuleSpec:
    found = find_spec(name)
    if found is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    bare = ModuleSpec(name, None, is_package=True)
    bare.submodule_search_locations = found.submodule_search_locations
    return bare
