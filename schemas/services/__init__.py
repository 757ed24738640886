"""What each service declares: a module for each, collected here by its name alone."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Final

from schemas.service import Service


def _collected() -> tuple[Service, ...]:
    """Of every module in this folder, sorted by name.

    Raises:
        ValueError: a service is not declared in the module of its name.
    """
    found = []
    for module in sorted(each.name for each in pkgutil.iter_modules(__path__)):
        service = import_module(f"{__name__}.{module}").SERVICE
        if not isinstance(service, Service) or service.name != module:
            raise ValueError(f"{__name__}.{module} does not declare SERVICE, a Service of this name")
        found.append(service)
    return tuple(found)


SERVICES: Final = _collected()
