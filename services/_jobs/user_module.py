"""A module that the user names as ``module:attribute``, or ``path/to/file.py:attribute``; their code, run here.

A file is run once, however many of its attributes are asked for: its classes are the same for all of them.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

_OWN_PACKAGES: Final = frozenset({"schemas", "services"})


class UserCodeError(Exception):
    """The user's module cannot be used; the message says why and what would help."""


@contextmanager
def output_on_stderr() -> Iterator[None]:
    """Whatever is printed meanwhile, also by native code, goes to standard error: standard output is for events."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def own_modules_hidden() -> Iterator[None]:
    """Hide this project's modules from the user's code, whose own may be called ``schemas`` or ``services``, too.

    This project's must have been imported before; they are restored afterwards.
    """
    hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in _OWN_PACKAGES}
    for name in hidden:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in _OWN_PACKAGES]:
            del sys.modules[name]
        sys.modules.update(hidden)


def load(name: str) -> Any:
    """What ``module:attribute`` stands for; the current directory comes first in the search, then PYTHONPATH.

    Raises:
        UserCodeError: there is no such module or attribute, or importing it fails.
    """
    place, separator, attribute = name.rpartition(":")
    if not separator or not place or not attribute:
        raise UserCodeError(f"{name!r} is not module:function, such as train:build_model")
    # We were started without both (`services._runtime.service.interpreter`): they are for the user's modules
    named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [path for path in (str(Path.cwd()), *named) if path not in sys.path]
    try:
        found: Any = _import(place)
    except UserCodeError:
        raise
    except BaseException as error:  # also a SystemExit of a script without a __main__ guard
        if isinstance(error, KeyboardInterrupt):
            raise
        raise UserCodeError(f"importing {place} fails: {describe(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UserCodeError(f"{place} has no {attribute}")
        found = getattr(found, part)
    return found


def call(found: Any, name: str, *arguments: Any) -> Any:
    """What the user's function returns.

    Raises:
        UserCodeError: it fails, or wants other arguments.
    """
    try:
        return found(*arguments)
    except Exception as error:
        raise UserCodeError(f"{name}() fails: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """An exception in a line, with the place where the user's code raised it."""
    text = str(error).strip().splitlines()
    trace, place = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if Path(file).is_relative_to(Path.cwd()) and Path(file) != Path(__file__):
            place = f" ({Path(file).name}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {text[0] if text else 'no reason given'}{place}"


def _import(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place)
    if not path.is_file():
        raise UserCodeError(f"there is no file {place}")
    if str(path.resolve().parent) not in sys.path:
        sys.path.insert(0, str(path.resolve().parent))
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path.resolve()):
        return known
    found = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = module
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
