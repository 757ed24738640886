"""Copies of frozen values: `services.scheduler.core.jobs.changed`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.scheduler.core.jobs import Job, Phase, changed


def test_a_copy_is_as_replace_makes_it() -> None:
    job = Job("a", 2, 1.0)
    assert changed(job, phase=Phase.RUNNING, nodes=("n1",)) == replace(job, phase=Phase.RUNNING, nodes=("n1",))
    assert job == Job("a", 2, 1.0)


def test_a_field_that_is_not_there_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Job has no slot$"):
        changed(Job("a", 2, 1.0), slot=3)
