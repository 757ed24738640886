"""The doctor's look at the network edge, with made-up kernels and daemons."""

import asyncio

from services._runtime.frr import Frr
from services._runtime.kernel_support import FEATURES, CannotTryError
from services.cli import doctor_network as network
from services.cli.doctor_finding import Level
from tests.support.fake_frr import FakeFrr


def test_what_the_kernel_lacks_is_named_with_its_remedy():
    assert [finding.level for finding in network.check_kernel(dict)] == [Level.OK]

    flower = next(feature for feature in FEATURES if feature.name == "flower")
    rest, finding = network.check_kernel(lambda: {flower: "No such file or directory"})

    assert "act_mirred" in rest.found
    assert "flower" not in rest.found
    assert (finding.name, finding.level) == ("cls_flower", Level.MISSING)
    assert finding.mend == "modprobe cls_flower, or a kernel with CONFIG_NET_CLS_FLOWER"


def test_without_rights_it_says_so():
    def refuse():
        raise CannotTryError("a network namespace to try in cannot be made: Operation not permitted")

    (finding,) = network.check_kernel(refuse)

    assert finding.level is Level.MISSING
    assert finding.mend == "sudo turnbuckle doctor"
    assert network.check_net_admin("CapEff:\t0000000000000000").level is Level.MISSING
    assert network.check_net_admin("CapEff:\t0000000000001000").level is Level.OK


def test_frr_installed_or_not(tmp_path):
    assert network.check_frr_installed((tmp_path,)).mend == "apt-get install frr"
    for daemon in ("zebra", "bgpd", "bfdd"):
        (tmp_path / daemon).touch(mode=0o755)
    assert network.check_frr_installed((tmp_path,)).level is Level.OK


async def test_frr_running(tmp_path):
    frr = Frr("lab", directory=tmp_path)
    (finding,) = await network.check_frr_running(frr)
    assert finding.level is Level.MISSING

    version = {"show version": "FRRouting 8.4.4 (vm) on Linux"}
    config = {"show running-config": "frr version 8.4.4\n!\nno zebra nexthop kernel enable\n"}
    async with FakeFrr(tmp_path / "lab", {"zebra": version | config, "bgpd": version}):
        found = {finding.name: finding for finding in await network.check_frr_running(frr)}
        assert found["frr version"].found == "8.4.4"
        assert "bfdd does not run" in found["frr daemons"].found
        assert found["nexthop objects"].level is Level.OK

    async with FakeFrr(tmp_path / "lab", {"zebra": {"show version": "FRRouting 7.5", "show running-config": "!\n"}}):
        found = {finding.name: finding for finding in await network.check_frr_running(frr)}
        assert found["frr version"].level is Level.NOTE
        assert "no zebra nexthop kernel enable" in found["nexthop objects"].mend


def test_this_host_can_be_examined():
    findings = asyncio.run(network.run_network_checks())
    assert {"network rights", "frr"} <= {finding.name for finding in findings}
