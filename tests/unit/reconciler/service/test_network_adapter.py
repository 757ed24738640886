"""Which kernel events matter, how failures are explained, what the rights are, and the settings of ports."""

import errno

import pytest

from services._edge.kernel_support import FEATURES
from services._host.netlink.constants import AF_BRIDGE, AF_INET, Rtm
from services._host.netlink.messages import Message
from services._host.netlink.objects import Snapshot
from services._runtime.settings_error import SettingsError
from services.reconciler.adapters import network as network_module
from services.reconciler.adapters.network import KernelNetwork, cause_of, missing_capability
from services.reconciler.ports import UnreadableError
from services.reconciler.settings import ReconcilerSettings


@pytest.mark.parametrize(
    ("kind", "family", "cause"),
    [
        (Rtm.NEWLINK, 0, "link"),
        (Rtm.DELNEIGH, AF_BRIDGE, "fdb"),
        (Rtm.NEWNEIGH, AF_INET, ""),
        (Rtm.NEWROUTE, AF_INET, "route"),
        (Rtm.NEWNEXTHOP, AF_INET, "nexthop"),
        (Rtm.DELRULE, AF_INET, "rule"),
        (Rtm.DELCHAIN, 0, "tc"),
        (Rtm.NEWACTION, 0, "tc"),
        (Rtm.NEWADDR, AF_INET, ""),
    ],
)
def test_causes_of_events(kind, family, cause):
    assert cause_of(Message(kind, 0, 0, bytes((family,)) + bytes(15))) == cause


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/run/netns/x"), "ip netns add x"),
        (PermissionError(errno.EPERM, "Operation not permitted"), "run as root, or with CAP_NET_ADMIN"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "the kernel does not answer: Cannot allocate memory"),
    ],
)
def test_failures_are_explained(monkeypatch, error, text):
    def refuse(_netns):
        raise error

    monkeypatch.setattr(network_module, "Kernel", refuse)
    network = KernelNetwork("x", event_buffer_bytes=4_096)
    for call in (network.snapshot, network.probe, network.route_state, network.subscribe):
        with pytest.raises(UnreadableError, match=text):
            call()


def test_what_the_kernel_lacks_is_tried_again_now_and_then(monkeypatch):
    now, answers = [100.0], [dict.fromkeys(FEATURES[-1:], "No such file"), {}]
    monkeypatch.setattr(network_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(network_module, "missing_features", lambda: answers.pop(0))
    network = KernelNetwork(None, event_buffer_bytes=4_096)

    lacks = network.unsupported()

    assert lacks is not None
    assert lacks.endswith("; modprobe cls_flower, or a kernel with CONFIG_NET_CLS_FLOWER")
    assert network.unsupported() == lacks
    now[0] += 11
    assert network.unsupported() is None
    now[0] += 1_000
    assert network.unsupported() is None, "not tried again"


def test_what_a_probe_would_show_is_made_once_for_each_look():
    network = KernelNetwork(None, event_buffer_bytes=4096)
    first, second = Snapshot(clsact=frozenset({1})), Snapshot(clsact=frozenset({1}))
    probe = network.probe_of(first)
    assert network.probe_of(first) is probe
    assert network.probe_of(second) == probe
    assert network.probe_of(second) is not probe
    assert network.probe_of(Snapshot()) != probe


def test_rights(tmp_path):
    status = tmp_path / "status"
    status.write_text("CapEff:\t0000000000000000\n")
    assert "CAP_NET_ADMIN" in missing_capability(None, status)
    status.write_text("CapEff:\t0000000000001000\n")
    assert missing_capability(None, status) is None
    assert "CAP_SYS_ADMIN" in missing_capability("x", status)
    status.write_text("CapEff:\t000001ffffffffff\n")
    assert missing_capability("x", status) is None


def test_ports_and_their_macs():
    settings = ReconcilerSettings.load(
        {"TURNBUCKLE_RECONCILER__PORTS": "rep0=02:00:00:00:00:0A, rep0=02:00:00:00:00:02, rep1"}
    )
    assert settings.forwarding().application_macs == {
        "rep0": ("02:00:00:00:00:0a", "02:00:00:00:00:02"),
        "rep1": (),
    }
    for wrong in ("rep0=01:00:00:00:00:0a", "rep0=nonsense", "=02:00:00:00:00:0a", "a_name_far_too_long"):
        with pytest.raises(SettingsError):
            ReconcilerSettings.load({"TURNBUCKLE_RECONCILER__PORTS": wrong})
