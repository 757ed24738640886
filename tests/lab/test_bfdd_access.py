"""Nobody but root, frr and vtysh's users reaches bfdd, whose control socket asks nobody who they are."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from services.fabric.apply import up
from tests.support.fabric_lab import standing

pytestmark = [pytest.mark.netns, pytest.mark.root]
NOBODY = 65534


def connect_as_nobody(path: Path) -> int:
    """The errno that a user without rights gets; 0: a connection."""
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with socket.socket(socket.AF_UNIX) as client:
                code = client.connect_ex(str(path))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_other_users_do_not_reach_bfdd_and_an_open_directory_is_told_and_closed(tmp_path):
    with standing(tmp_path) as lab:
        files = [lab.file(number) for number in (1, 2)]
        for file in files:
            up(file, paths=lab.paths)
        for file in files:
            lab.wait_until_whole(file)
        directory = Path(f"/var/run/frr/{lab.host(1)}")
        assert connect_as_nobody(directory / "bfdd.sock") == 13, "EACCES"
        assert directory.group() == "frrvty"

        directory.chmod(0o755)
        assert connect_as_nobody(directory / "bfdd.sock") == 0
        # Beside it, for a moment, a session that a machine which stood still has lost
        (difference,) = lab.wait_for_differences(files[0], 1)
        assert (difference.found, difference.wanted) == ("0755 frr:frrvty", "0750 frr:frrvty")
        assert f"install -d -m 750 -o frr -g frrvty {directory}" in difference.remedy
        changed = [step.name for step in up(files[0], paths=lab.paths) if step.writes]
        assert changed == [f"directory {directory}"], "and no daemon was restarted"
        assert connect_as_nobody(directory / "bfdd.sock") == 13
        lab.wait_until_whole(files[0])
