"""The journal: what survives a second act, a reboot, another version, a second process."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from services.fabric.journal import Journal, JournalError, locked
from services.fabric.resources import Directory, Namespace, Sysctl, TextFile

SYSCTL = Sysctl(netns=None, name="net/ipv4/fib_multipath_hash_policy", value="1")
FILE = TextFile(path="/etc/frr/x.conf", value="new\n")


def test_a_second_act_keeps_the_value_before_the_first(tmp_path):
    journal = Journal.load(tmp_path, "h1")
    journal.record(SYSCTL, "0")
    journal.record(replace(SYSCTL, value="2"), "1")
    entry = Journal.load(tmp_path, "h1").entries[SYSCTL.key]
    assert (entry.resource.value, entry.before, entry.former) == ("2", "0", "1")


def test_made_is_what_was_absent(tmp_path):
    journal = Journal.load(tmp_path, "h1")
    journal.record(SYSCTL, "0")
    journal.record(Namespace(name="a1"), None)
    assert journal.made("network namespace a1")
    assert not journal.made(SYSCTL.key)
    assert not journal.made("unknown")
    assert not journal.made(None)


def test_the_last_undone_act_takes_the_file_with_it(tmp_path):
    journal = Journal.load(tmp_path, "h1")
    journal.record(SYSCTL, "0")
    journal.forget(SYSCTL.key)
    assert list(tmp_path.iterdir()) == []


def test_after_a_reboot_only_files_are_remembered(tmp_path):
    """The kernel has forgotten the rest, and an undo of it would hit what another has made since."""
    journal = Journal.load(tmp_path, "h1")
    for resource in (SYSCTL, Namespace(name="a1"), FILE, Directory(path="/etc/frr/h1")):
        journal.record(resource, None)
    text = json.loads((tmp_path / "h1.json").read_text())
    (tmp_path / "h1.json").write_text(json.dumps(text | {"boot_id": "another"}))
    assert list(Journal.load(tmp_path, "h1").entries) == [FILE.key, "directory /etc/frr/h1"]


@pytest.mark.parametrize("text", ["", "[]", '{"version": 99}', '{"version": 1, "boot_id": "", "entries": [{"x": 1}]}'])
def test_a_journal_that_is_none_is_refused(tmp_path, text):
    """To go on without it would leave for ever what it names."""
    (tmp_path / "h1.json").write_text(text)
    with pytest.raises(JournalError, match=r"h1\.json"):
        Journal.load(tmp_path, "h1")


def test_an_act_that_cannot_be_noted_is_not_done(tmp_path):
    journal = Journal.load(tmp_path / "missing", "h1")
    with pytest.raises(JournalError, match="cannot be written"):
        journal.record(SYSCTL, "0")


def test_a_second_process_waits_its_turn(tmp_path):
    with locked(tmp_path, "h1"):
        with pytest.raises(JournalError, match="another `turnbuckle fabric` is at work on h1"), locked(tmp_path, "h1"):
            pass
        with locked(tmp_path, "h2"):  # another host's file
            pass
    with locked(tmp_path, "h1"):
        pass
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - the names are enough
