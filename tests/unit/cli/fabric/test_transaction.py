"""Up, down, a refusal and a kill at any act: a host is as its file says or as it was before, never half of either."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.fabric.apply import no_progress
from services.fabric.frr_text import FrrPaths
from services.fabric.journal import Journal
from services.fabric.layout import layout
from services.fabric.model import HostFile
from services.fabric.plan import Action, ConflictError
from services.fabric.resources import Device, LinkAttribute
from services.fabric.transaction import Transaction
from tests.support.examples import examples
from tests.support.model_host import FRESH, KilledError, ModelHost

PATHS = FrrPaths()


def host_file(**changes):
    port = {"name": "rep0", "mac": "02:00:00:00:00:01", "address": "172.16.0.1/24", "netns": "a1"}
    fields = {
        "name": "h1",
        "asn": 65001,
        "vtep": "10.255.0.1",
        "uplinks": ["p1", "p2"],
        "vni": 100,
        "ports": [port],
        "frr": {"start": True},
    }
    return HostFile.model_validate(fields | changes)


@st.composite
def host_files(draw):
    """Any file that says something different about every kind of resource."""
    numbers = draw(st.lists(st.integers(1, 3), unique=True, max_size=3))
    ports = [
        {
            "name": f"rep{number}",
            "mac": f"02:00:00:00:00:0{number}",
            "address": f"172.16.0.{number}/24",
            "netns": draw(st.sampled_from(["a1", "a2"])),
            "device": f"app{number}",
        }
        for number in numbers
    ]
    return host_file(
        ports=ports,
        vni=draw(st.sampled_from([100, 200])),
        vtep=draw(st.sampled_from(["10.255.0.1", "10.255.0.9"])),
        uplinks=draw(
            st.sampled_from([["p1"], ["p1", "p2"], [{"name": "p1", "address": "192.0.2.1/31", "peer": "192.0.2.0"}]])
        ),
        encapsulation=draw(st.sampled_from([None, {"port": 4790}, {"port": 4791}])),
        transit=draw(st.booleans()),
        bfd=draw(st.sampled_from([None, {"interval_ms": 50}, {"interval_ms": 10}])),
        frr={"start": draw(st.booleans())},
    )


def resources_of(file):
    return layout(file, 1450, PATHS)


@st.composite
def situations(draw):
    """Two versions of a file, and a host on which parts of the first are there already, made by somebody else."""
    first, second = draw(host_files()), draw(host_files())
    wanted = resources_of(first)
    known = {resource.key: resource for resource in (*wanted, *resources_of(second))}
    values = {}
    for resource in wanted:
        above_there = resource.parent is None or resource.parent in values
        if resource.parent is not None and above_there and isinstance(resource, LinkAttribute):
            values[resource.key] = draw(st.sampled_from([resource.value, FRESH, "another"]))
        elif isinstance(resource, Device) and draw(st.integers(0, 3)) == 0 and resource.kind == "bridge":
            values[resource.key] = resource.value
    return first, second, ModelHost(known.values(), values)


@contextmanager
def journal_directory():
    memory = "/dev/shm"  # a rename on disk takes a thousand times longer
    with tempfile.TemporaryDirectory(dir=memory if Path(memory).is_dir() else None) as directory:
        yield Path(directory)


def start(host, directory):
    """A process that begins: all that it knows is on the host and in the journal."""
    host.acts = 0
    return Transaction(host, Journal.load(directory, "h1"), no_progress)


def bring_up(host, directory, file):
    run = start(host, directory)
    run.bring_up(resources_of(file))
    return run


def is_as_wanted(host, file):
    return all(host.read(resource) == resource.value for resource in resources_of(file))


@settings(max_examples=examples(40))
@given(situations())
def test_up_twice_and_down(situation):
    """The host is as the file says, the second `up` writes nothing, and `down` leaves what was there before."""
    file, _, host = situation
    before = dict(host.values)
    with journal_directory() as directory:
        bring_up(host, directory, file)
        assert is_as_wanted(host, file)
        again = bring_up(host, directory, file)
        assert host.acts == 0
        assert not any(step.writes for step in again.steps)
        assert start(host, directory).take_down() == []
        assert host.values == before
        assert list(directory.iterdir()) == []


@settings(max_examples=examples(40))
@given(situations())
def test_another_file_after_the_first(situation):
    """What only the first file asked for is gone, and `down` still knows what was there before both."""
    first, second, host = situation
    before = dict(host.values)
    with journal_directory() as directory:
        bring_up(host, directory, first)
        try:
            bring_up(host, directory, second)
        except ConflictError:
            return  # somebody else's device stands where the second file wants another
        assert is_as_wanted(host, second)
        only_first = {resource.key for resource in resources_of(first)} - {r.key for r in resources_of(second)}
        assert {key for key in only_first if key in host.values} <= set(before)
        assert start(host, directory).take_down() == []
        assert host.values == before


@settings(max_examples=examples(40))
@given(situations(), st.integers(0, 60))
def test_a_refusal_takes_everything_back(situation, act):
    """Whichever act is refused, the host is as before this `up`, and so is the journal."""
    first, second, host = situation
    with journal_directory() as directory:
        bring_up(host, directory, first)
        before, noted = dict(host.values), (directory / "h1.json").read_text()
        run = start(host, directory)
        host.refuse_at = act
        try:
            run.bring_up(resources_of(second))
        except ConflictError:
            assert run.roll_back() == []
        except OSError:
            assert run.roll_back() == []
        else:
            return
        assert host.values == before
        assert (directory / "h1.json").read_text() == noted


@settings(max_examples=examples(40))
@given(situations(), st.integers(0, 120), st.integers(0, 40))
def test_killed_at_any_moment(situation, moment, second_moment):
    """Killed between any two acts of `up`, then of `down`: the next `down` still leaves what was there before."""
    first, second, host = situation
    before = dict(host.values)
    with journal_directory() as directory:
        bring_up(host, directory, first)
        host.die_at = moment
        with suppress(KilledError, ConflictError):
            bring_up(host, directory, second)
        host.die_at = second_moment
        try:
            left = start(host, directory).take_down()
        except KilledError:
            host.die_at = None
            left = start(host, directory).take_down()
        assert left == []
        assert host.values == before


def test_what_cannot_be_taken_back_is_named_and_kept_for_down():
    """A rollback that fails says what is left, and the journal still knows it."""
    file = host_file()
    host = ModelHost(resources_of(file))
    before = dict(host.values)
    with journal_directory() as directory:
        run = start(host, directory)
        host.refuse_at = 10
        with pytest.raises(OSError, match="refused by the model"):
            run.bring_up(resources_of(file))
        host.refuse_at = host.acts  # the first act of the rollback as well
        left = run.roll_back()
        assert len(left) == 1
        assert "refused by the model" in left[0]
        assert start(host, directory).take_down() == []
        assert host.values == before


def test_what_somebody_changed_since_is_left():
    """`down` does not undo what others have done, and says so."""
    file = host_file()
    host = ModelHost(resources_of(file))
    with journal_directory() as directory:
        bring_up(host, directory, file)
        host.values["net/ipv4/fib_multipath_hash_policy"] = "3"
        run = start(host, directory)
        assert run.take_down() == []
        assert host.values["net/ipv4/fib_multipath_hash_policy"] == "3"
        assert [step.name for step in run.steps if step.action is Action.LEAVE] == [
            "net/ipv4/fib_multipath_hash_policy"
        ]


def test_a_foreign_device_is_a_conflict():
    """A device of that name with other parameters is nobody's to replace."""
    file = host_file()
    host = ModelHost(resources_of(file), {"device vx100": "vxlan id 7 dstport 4789 learning"})
    with journal_directory() as directory:
        run = start(host, directory)
        with pytest.raises(ConflictError, match="device vx100 is there already"):
            run.bring_up(resources_of(file))
        assert run.roll_back() == []
        assert host.values["device vx100"] == "vxlan id 7 dstport 4789 learning"
