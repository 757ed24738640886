"""Asking FRR's daemons on their vty sockets."""

import asyncio

import pytest

from services._edge.frr import Frr, FrrError
from tests.support.fake_frr import FakeFrr

ANSWERS = {"zebra": {"show ip route json": '{"10.255.0.2/32": []}', "show version": "FRRouting 8.4.4", "wait": None}}


async def test_questions_and_answers(tmp_path):
    async with FakeFrr(tmp_path / "h1", ANSWERS):
        frr = Frr("h1", directory=tmp_path, within_s=60)

        assert await frr.show_json("zebra", "show ip route json") == {"10.255.0.2/32": []}
        assert await frr.ask("zebra", "show version") == "FRRouting 8.4.4"
        with pytest.raises(FrrError, match=r"zebra refuses 'show nonsense' .status 2.: % Unknown command"):
            await frr.ask("zebra", "show nonsense")
        with pytest.raises(FrrError, match=r"no JSON: 'FRRouting 8.4.4'"):
            await frr.show_json("zebra", "show version")
        with pytest.raises(FrrError, match=r"has not answered 'wait' within 0.2 s"):
            await Frr("h1", directory=tmp_path, within_s=0.2).ask("zebra", "wait")
        with pytest.raises(FrrError, match=r"bgpd does not run: there is no .*h1/bgpd.vty; start FRR"):
            await frr.ask("bgpd", "show version")


async def test_a_socket_that_nobody_listens_at(tmp_path):
    async with FakeFrr(tmp_path, ANSWERS):
        pass
    (tmp_path / "zebra.vty").touch()
    with pytest.raises(FrrError, match="zebra does not run"):
        await Frr(directory=tmp_path).ask("zebra", "show version")


async def test_a_daemon_that_dies_while_it_answers(tmp_path):

    async def hang_up(reader, writer):
        await reader.readuntil(b"\0")
        writer.write(b"\0\0\0\0half an ans")
        writer.close()

    server = await asyncio.start_unix_server(hang_up, tmp_path / "zebra.vty")
    with pytest.raises(FrrError, match="zebra does not run"):
        await Frr(directory=tmp_path).ask("zebra", "show version")
    server.close()
    await server.wait_closed()
