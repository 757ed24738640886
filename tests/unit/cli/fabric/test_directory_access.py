"""A directory is made with its access, repaired, and given back the one that it had."""

from __future__ import annotations

from services.fabric.access import access_of
from services.fabric.machine import Machine
from services.fabric.nic import Nics
from services.fabric.resources import Directory


def test_a_directory_is_made_repaired_and_restored(tmp_path):
    names = access_of(tmp_path).partition(" ")[2]
    path = tmp_path / "h1"
    wanted = Directory(path=str(path), value=f"0750 {names}", volatile=True)
    with Machine(Nics(tmp_path)) as machine:
        assert machine.read(wanted) is None
        machine.write(wanted)
        assert machine.read(wanted) == f"0750 {names}"

        path.chmod(0o755)
        assert machine.read(wanted) == f"0755 {names}"
        (path / "bfdd.sock").touch()
        machine.write(wanted)
        assert (machine.read(wanted), (path / "bfdd.sock").exists()) == (f"0750 {names}", True)

        machine.restore(wanted, f"0711 {names}")
        assert machine.read(wanted) == f"0711 {names}"
        machine.restore(wanted, None)
        assert not path.exists()


def test_one_that_is_only_to_be_there_is_left_as_it_is(tmp_path):
    (tmp_path / "etc").mkdir(mode=0o711)
    with Machine(Nics(tmp_path)) as machine:
        assert machine.read(Directory(path=str(tmp_path / "etc"))) == "present"


def test_owners_without_a_name_stand_as_numbers(tmp_path, monkeypatch):
    def unknown(_number):
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setattr("grp.getgrgid", unknown)
    found = tmp_path.stat()
    assert access_of(tmp_path).endswith(f" {found.st_uid}:{found.st_gid}")
    with Machine(Nics(tmp_path)) as machine:
        machine.write(Directory(path=str(tmp_path / "x"), value=f"0700 {found.st_uid}:{found.st_gid}"))
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o700
