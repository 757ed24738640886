"""Virtual functions and representors, found in sysfs; the switch's mode, through devlink. Only those two are faked."""

from __future__ import annotations

import pytest

from services.fabric import prerequisites
from services.fabric.model import HostFile
from services.fabric.nic import Nics
from tests.support.fake_nic import PCI_ADDRESS, FakeNic


@pytest.fixture
def nic(tmp_path, monkeypatch):
    nic = FakeNic(tmp_path, "enp3s0f0np0")
    monkeypatch.setenv("PATH", str(nic.commands), prepend=":")
    return nic


@pytest.fixture
def nics(nic):
    return Nics(nic.sysfs)


def host(number=0, name="enp3s0f0np0"):
    port = {
        "name": "rep0",
        "type": "vf",
        "mac": "02:00:00:00:00:01",
        "address": "172.16.0.1/24",
        "netns": "a1",
        "vf": {"nic": name, "number": number},
    }
    fields = {"name": "h1", "asn": 1, "vtep": "10.0.0.1", "uplinks": ["p1"], "vni": 1, "ports": [port]}
    return HostFile.model_validate(fields)


def test_what_it_is_and_has(nic, nics):
    assert nics.pci_address("enp3s0f0np0") == PCI_ADDRESS
    assert nics.pci_address("lo") is None
    assert (nics.function_limit("enp3s0f0np0"), nics.function_count("enp3s0f0np0")) == (4, 0)
    nics.set_function_count("enp3s0f0np0", 2)
    assert nic.function_count == 2


def test_the_mode_goes_through_devlink(nic, nics):
    assert nics.switch_mode("enp3s0f0np0") == "legacy"
    nics.set_switch_mode("enp3s0f0np0", "switchdev")
    assert nic.mode == "switchdev"
    nic.set_mode(None)
    with pytest.raises(OSError, match="Operation not supported"):
        nics.switch_mode("enp3s0f0np0")


def test_offloads_go_through_ethtool(nics):
    assert nics.feature("enp3s0f0np0", "hw-tc-offload") == "off"
    nics.set_feature("enp3s0f0np0", "hw-tc-offload", "on")
    assert nics.feature("enp3s0f0np0", "hw-tc-offload") == "on"
    assert nics.feature("enp3s0f0np0", "no-such-thing") is None
    assert nics.feature("vanished", "hw-tc-offload") is None


@pytest.mark.parametrize(("port", "found"), [("pf0vf3", "eth7"), ("c1pf0vf3", "eth7"), ("3", "eth7"), ("pf1vf3", None)])
def test_the_representor_is_known_by_switch_and_port_name(nic, nics, port, found):
    """Not by its own name, which udev may choose. pf1 is the NIC's other port; older drivers give only the number."""
    nic.add_device("eth6", "pf0vf2")
    nic.add_device("eth5", "pf0vf3", switch="another")
    nic.add_device("eth7", port)
    assert nics.representor("enp3s0f0np0", 3) == found
    assert nics.representor("enp3s0f0np0", 9) is None
    assert nics.representor("lo", 3) is None


def test_a_functions_device_is_there_until_it_is_moved(nic, nics):
    assert nics.function_device("enp3s0f0np0", 1) is None
    nic.add_function(1, "enp3s0f0v1")
    assert nics.function_device("enp3s0f0np0", 1) == "enp3s0f0v1"
    nic.take_function(1, "enp3s0f0v1")
    assert nics.function_device("enp3s0f0np0", 1) is None


def problems(file, nics):
    return [problem.what for problem in prerequisites.nics(file, nics)]


def test_a_nic_in_legacy_mode_without_functions_suits(nics):
    assert problems(host(), nics) == []


def test_functions_in_switchdev_mode_suit(nic, nics):
    nic.set_mode("switchdev")
    nic.set_function_count(1)
    assert problems(host(), nics) == []


def test_what_does_not_suit_is_named(nic, nics):
    assert problems(host(name="eth99"), nics) == ["there is no NIC eth99 on the PCI bus"]
    assert problems(host(number=4), nics) == ["enp3s0f0np0 can have 4 virtual functions, number 4 is asked for"]
    nic.set_function_count(1)
    assert problems(host(), nics) == [
        "enp3s0f0np0 has virtual functions in legacy mode, which a change would take from their users"
    ]
    nic.set_mode("switchdev")
    assert problems(host(number=1), nics) == [
        "enp3s0f0np0 has 1 virtual functions, 2 are needed, and the kernel goes only through 0"
    ]
    nic.set_mode(None)
    assert "cannot be queried" in problems(host(), nics)[0]


def test_missing_commands_are_named(nics, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert problems(host(), nics) == ["there is no `devlink` command, which SR-IOV needs"]
