"""Fixtures that the labs share."""

from __future__ import annotations

from tests.lab.vm.fixtures import guest, quick_guest
from tests.support.dual_tor import dual_tor, whole

__all__ = ["dual_tor", "guest", "quick_guest", "whole"]
