"""Fixtures that the labs share."""

from __future__ import annotations

from tests.lab.vm.fixtures import guest

__all__ = ["guest"]
