"""What the machine lacks is named with its remedy. The kernel is asked for real only in tests/lab."""

from __future__ import annotations

import errno

import pytest

from services.fabric import prerequisites
from services.fabric.frr_text import FrrPaths
from services.fabric.model import HostFile

PORT = {"name": "rep0", "mac": "02:00:00:00:00:01", "address": "172.16.0.1/24", "netns": "a1"}


def host(**changes):
    fields = {"name": "h1", "asn": 1, "vtep": "10.0.0.1", "uplinks": ["p1"], "vni": 1, "ports": [PORT]}
    return HostFile.model_validate(fields | changes)


def test_rights():
    every = (1 << 12) | (1 << 21)  # CAP_NET_ADMIN, CAP_SYS_ADMIN
    assert prerequisites.rights(f"CapEff:\t{every:016x}\n") == []
    (problem,) = prerequisites.rights(f"CapEff:\t{1 << 12:016x}\n")
    assert problem.what == "no right to change this host's network (CAP_SYS_ADMIN)"
    assert problem.remedy.startswith("sudo turnbuckle fabric")


@pytest.mark.parametrize("kind", ["bridge", "vxlan", "veth"])
def test_a_kernel_without_a_kind_of_device(monkeypatch, kind):
    def refuse(wanted):
        assert kind in wanted
        return {name: errno.EOPNOTSUPP if name == kind else 0 for name in wanted}

    monkeypatch.setattr(prerequisites, "_try_in_scratch_namespace", refuse)
    (problem,) = prerequisites.kernel(host())
    assert problem.what == f"this kernel has no {kind} devices"
    assert problem.remedy == f"modprobe {kind}, or a kernel with CONFIG_{kind.upper()}"


def test_without_a_port_no_veth_is_needed(monkeypatch):
    asked = []
    monkeypatch.setattr(prerequisites, "_try_in_scratch_namespace", lambda wanted: asked.extend(wanted) or {})
    assert list(prerequisites.kernel(host(ports=[]))) == []
    assert asked == ["bridge", "vxlan"]


def test_a_machine_without_frr(tmp_path):
    paths = FrrPaths(configuration=str(tmp_path / "frr"))
    (problem,) = prerequisites.frr(host(), paths)
    assert (problem.what, problem.remedy) == (f"FRR is not installed (no {tmp_path}/frr)", "apt-get install frr")


def test_no_real_time_scheduling(monkeypatch, tmp_path):
    monkeypatch.setattr(prerequisites, "_try_realtime", lambda: errno.EPERM)
    monkeypatch.setattr(prerequisites, "_other_zebra", lambda *_: iter(()))
    for name in ("zebra", "bgpd", "bfdd"):
        (tmp_path / name).touch(0o755)
    paths = FrrPaths(configuration=str(tmp_path), binaries=str(tmp_path))
    wanted = host(frr={"start": True})
    said = [problem.what for problem in prerequisites.frr(wanted, paths)]
    assert "FRR cannot be given SCHED_RR (Operation not permitted)" in said
    calm = host(frr={"start": True, "realtime": False})
    assert not any("SCHED_RR" in problem.what for problem in prerequisites.frr(calm, paths))
