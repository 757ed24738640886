"""The variables that `plan` prints are ones that the services take."""

from __future__ import annotations

from services.fabric.environment import fast_path_environment, reconciler_environment
from services.fabric.model import HostFile
from services.fastpath.settings import FastPathSettings
from services.reconciler.settings import ReconcilerSettings

PORTS = [
    {"name": "rep0", "mac": "02:00:00:00:00:01", "address": "172.16.0.1/24", "netns": "a1"},
    {"name": "rep1", "mac": "02:00:00:00:00:02", "address": "172.16.0.2/24", "netns": "a2"},
]


def host(**changes):
    fields = {"name": "h1", "asn": 1, "vtep": "10.0.0.1", "uplinks": ["p1", "p2"], "vni": 1, "ports": PORTS}
    return HostFile.model_validate(fields | changes)


def test_the_reconciler_takes_them():
    settings = ReconcilerSettings.load(reconciler_environment(host(netns="x", frr={"start": True})))
    assert (settings.node, settings.netns, settings.frr_pathspace) == ("h1", "x", "h1")
    assert settings.ports == ("rep0=02:00:00:00:00:01", "rep1=02:00:00:00:00:02")
    assert settings.encapsulation_device == "vxenc0"


def test_the_fast_path_takes_them():
    settings = FastPathSettings.load(fast_path_environment(host(frr={"start": True})))
    assert (settings.uplinks, settings.vtep, settings.frr_pathspace) == (("p1", "p2"), "10.0.0.1", "h1")
    assert settings.netns is None


def test_who_has_nothing_to_do_is_told_nothing():
    assert reconciler_environment(host(encapsulation=None)) == {}
    assert fast_path_environment(host(uplinks=["p1"])) == {}
