"""FRR's configuration: what must stand in it, and for whom."""

from __future__ import annotations

from services.fabric.frr_text import TorSwitch, host_configuration, tor_configuration
from services.fabric.model import Bgp, HostFile


def host(**changes):
    fields = {"name": "h1", "asn": 65001, "vtep": "10.255.0.1", "uplinks": ["p1", "p2"], "vni": 100}
    return HostFile.model_validate(fields | changes)


def test_zebra_installs_no_nexthop_objects_and_sets_the_source():
    lines = host_configuration(host()).zebra.splitlines()
    assert "no zebra nexthop kernel enable" in lines
    assert lines[lines.index("route-map SOURCE permit 10") + 1] == " set src 10.255.0.1"
    assert "ip protocol bgp route-map SOURCE" in lines


def test_a_host_speaks_unnumbered_or_numbered():
    numbered = {"name": "p2", "address": "192.0.2.1/31", "peer": "192.0.2.0", "peer_asn": 65102}
    text = host_configuration(host(uplinks=["p1", numbered])).bgpd
    assert " neighbor p1 interface remote-as external\n neighbor p1 interface peer-group FABRIC\n" in text
    assert " neighbor 192.0.2.0 remote-as 65102\n neighbor 192.0.2.0 peer-group FABRIC\n" in text


def test_a_host_announces_only_itself_unless_it_carries_others():
    own = host_configuration(host()).bgpd
    assert own.count("  neighbor FABRIC route-map OWN out\n") == 2  # IPv4 and EVPN
    assert "route-map OWN" not in host_configuration(host(transit=True)).bgpd


def test_timers():
    text = host_configuration(host(bgp={"keepalive_s": 10, "hold_s": 30}, bfd={"interval_ms": 10, "multiplier": 4}))
    assert " timers bgp 10 30\n" in text.bgpd
    assert " neighbor FABRIC timers connect 1\n" in text.bgpd
    assert " neighbor FABRIC advertisement-interval 0\n" in text.bgpd
    assert "  detect-multiplier 4\n  transmit-interval 10\n  receive-interval 10\n" in text.bfdd


def test_without_bfd_nobody_asks_for_it():
    text = host_configuration(host(bfd=None))
    assert "bfd" not in text.bgpd
    assert "profile" not in text.bfdd


def test_a_switch_passes_on_what_hosts_announce_and_has_no_network_of_its_own():
    text = tor_configuration(TorSwitch("s1", 65101, "10.255.0.101", ("d1", "d2", "isl"), None, Bgp())).bgpd
    for port in ("d1", "d2", "isl"):
        assert f" neighbor {port} interface peer-group FABRIC\n" in text
    assert "advertise-all-vni" not in text
    assert "route-map OWN" not in text


def test_the_integrated_text_holds_all_three():
    text = host_configuration(host())
    for part in (text.zebra, text.bgpd, text.bfdd):
        assert part in text.integrated
