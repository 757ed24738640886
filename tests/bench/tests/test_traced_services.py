"""The services with stamps override what the services have: else a benchmark would measure nothing and say 0."""

from __future__ import annotations

import ast
import inspect

import pytest

from tests.bench.traced_agent import TracedAgent
from tests.bench.traced_allocator import TracedAllocator


@pytest.mark.parametrize("traced", [TracedAgent, TracedAllocator])
def test_every_method_that_is_passed_on_is_the_services_own(traced: type) -> None:
    tree = ast.parse(inspect.getsource(traced))
    passed_on = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()"
    }
    assert len(passed_on) > 2
    assert {name for name in passed_on if not hasattr(traced.__mro__[1], name)} == set()
