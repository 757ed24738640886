"""The reconciler's process on a kernel that has flower, inside the machine: run by tests/lab/test_thorn_vm.py.

A bridge, a VTEP and a port in a network namespace; `bridge fdb` plays zebra. Emulation makes every timing meaningless.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.network import NetworkStateReply, NetworkStateRequest, TcEvent, TcObject, TcOperationKind
from schemas.streams import TC_STREAM
from schemas.subjects import RECONCILER_STATE, TC_EVENTS
from services._host.netlink.objects import Filter
from services._runtime.bus.api import Delivery
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services._runtime.bus.options import BusOptions
from services.reconciler.adapters.kernel import Kernel

pytestmark = pytest.mark.timeout(600)

NETNS, NODE, PORT = "service", "n1", "rep0"
PREF = 21_000
LOCAL_MAC = "02:00:00:00:00:01"
WITHIN_S = 240.0
SET_UP = f"""
ip netns add {NETNS}
ip -n {NETNS} link set lo up
ip -n {NETNS} address add 10.255.0.1/32 dev lo
ip -n {NETNS} link add br0 type bridge
ip -n {NETNS} link set br0 up
ip -n {NETNS} link add vx100 type vxlan id 100 local 10.255.0.1 dstport 4789 nolearning
ip -n {NETNS} link set vx100 master br0 up
ip -n {NETNS} link add vxenc0 type vxlan external dstport 4790 local 10.255.0.1 nolearning
ip -n {NETNS} link set vxenc0 up
ip -n {NETNS} link add {PORT} type veth peer name app
ip -n {NETNS} link set {PORT} master br0 up
ip -n {NETNS} link set app up
"""


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def mac(number: int) -> str:
    return f"02:01:00:00:{number >> 8:02x}:{number & 255:02x}"


def until(condition: Callable[[], Any], what: str, within_s: float = WITHIN_S) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not hold within {within_s:g} s"
        time.sleep(0.2)
    return found


class Lab:
    """The host, the bus, and at most one reconciler."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        store = directory / "store"
        store.mkdir()
        # The streams together may take a gigabyte: more than JetStream sees free in half of this machine's memory.
        run("mount", "-t", "tmpfs", "-o", "size=8g", "store", str(store))
        self.server = EmbeddedNats(store_directory=store)
        self.server.ready_timeout_s = WITHIN_S
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        for line in SET_UP.strip().splitlines():
            run(*line.split())
        self.kernel = Kernel(NETNS)

    # What zebra does.

    def fdb(self, verb: str, numbers: range, vtep: str) -> None:
        """Remote MACs appear (add) or go (del)."""
        lines = []
        for number in numbers:
            lines.append(f"fdb {verb} {mac(number)} dev vx100 master extern_learn\n")
            lines.append(f"fdb {verb} {mac(number)} dev vx100 self dst {vtep}\n")
        subprocess.run(["bridge", "-n", NETNS, "-batch", "-"], input="".join(lines), text=True, check=True)

    # What is in the kernel.

    def rules(self) -> dict[str, Filter]:
        """Filters on the port by MAC."""
        snapshot = self.kernel.snapshot()
        return {rule.mac or "": rule for rule in snapshot.filters if rule.pref == PREF}

    def vteps(self) -> dict[str, str]:
        """Where each MAC's rule leads."""
        return {
            address: rule.actions[0].tunnel.destination if rule.actions and rule.actions[0].tunnel else "nowhere"
            for address, rule in self.rules().items()
        }

    # The reconciler.

    def environment(self, **settings: str) -> dict[str, str]:
        given = {
            "NODE": NODE,
            "NETNS": NETNS,
            "PORTS": f"{PORT}={LOCAL_MAC}",
            "STATE_DIRECTORY": str(self.directory / "state"),
            "FRR_DIRECTORY": str(self.directory / "no-frr"),
            **settings,
        }
        ours = {f"TURNBUCKLE_RECONCILER__{name}": value for name, value in given.items()}
        return dict(os.environ) | ours | {"TURNBUCKLE_NATS_URL": self.server.url}

    @property
    def log(self) -> Path:
        return self.directory / f"log{self.starts}"

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Log lines of the reconciler that runs."""
        parsed = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in parsed if line["event"] == event]

    def start(self, **settings: str) -> None:
        self.starts += 1
        command = [sys.executable, "-m", "services.reconciler"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=self.environment(**settings), stderr=log)
        try:
            until(lambda: self.lines("reconciled") or self._died(), "the first pass")
        except AssertionError as error:
            raise AssertionError(f"{error}; its log: {self.log.read_text()[-3000:]}") from error

    def _died(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        return False

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(WITHIN_S)
        self.process = None
        return code

    async def connect(self) -> NatsBus:
        return await NatsBus.connect(BusOptions(servers=(self.server.url,), connect_deadline_s=WITHIN_S))

    def state(self) -> NetworkStateReply:
        async def ask() -> NetworkStateReply:
            bus = await self.connect()
            try:
                subject = RECONCILER_STATE.subject(bus.root, node=NODE)
                reply = await bus.request(subject, NetworkStateRequest(), timeout_s=60.0)
            finally:
                await bus.close(2.0)
            assert isinstance(reply, NetworkStateReply)
            return reply

        return asyncio.run(ask())

    def audit(self) -> list[TcEvent]:
        """Everything that was told of writes."""
        found: list[TcEvent] = []

        def take(delivery: Delivery) -> None:
            assert isinstance(delivery.message, TcEvent)
            found.append(delivery.message)

        async def read() -> None:
            bus = await self.connect()
            try:
                await read_stored(bus, TC_STREAM, TC_EVENTS.pattern(bus.root, node=NODE), 0.0, take)
            finally:
                await bus.close(2.0)

        asyncio.run(read())
        return found

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.kernel.close()
        asyncio.run(self.server.stop())
        subprocess.run(["ip", "netns", "del", NETNS], check=True)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    modules = ["bridge", "veth", "vxlan", "cls_flower", "act_tunnel_key", "act_mirred", "sch_ingress"]
    subprocess.run(["modprobe", "--all", *modules], check=True)
    lab = Lab(tmp_path_factory.mktemp("service"))
    try:
        asyncio.run(lab.server.start())
        lab.fdb("add", range(40), "10.255.0.2")
        lab.start()
        yield lab
    finally:
        lab.close()


def replayed(events: list[TcEvent]) -> dict[str, str]:
    """The rules that follow from what was told, incarnation by incarnation."""
    rules: dict[str, str] = {}
    expected: dict[int, int] = {}
    parts: dict[int, int] = {}
    for event in events:
        if event.part == 1:
            assert event.first_pass_id == expected.get(event.incarnation, 0) + 1, "no pass is missing, all in order"
        else:
            assert event.part == parts[event.incarnation] + 1
        expected[event.incarnation], parts[event.incarnation] = event.pass_id, event.part
        assert event.lost_operations == 0
        for operation in event.operations:
            if operation.object is not TcObject.FILTER or operation.errno:
                continue
            if operation.operation is TcOperationKind.DELETE:
                rules.pop(operation.mac, None)
            else:
                rules[operation.mac] = operation.after
    return rules


def test_rules_appear_and_what_other_hands_do_is_repaired(lab: Lab) -> None:
    wanted = {mac(number): "10.255.0.2" for number in range(40)}
    until(lambda: lab.vteps() == wanted, "a rule for each MAC")
    fdb = run("bridge", "-n", NETNS, "fdb", "show", "dev", PORT)
    assert f"{LOCAL_MAC} master br0 static" in fdb, "the application's own MAC does not age out"

    victim = lab.rules()[mac(7)]
    run(*f"tc -n {NETNS} filter del dev {PORT} ingress pref {PREF} handle {victim.handle:#x} flower".split())
    until(lambda: lab.vteps() == wanted, "the deleted rule")

    index = victim.actions[0].index
    other = f"tunnel_key set src_ip 10.255.0.1 dst_ip 10.255.0.77 id 100 dst_port 4789 index {index}"
    run(*f"tc -n {NETNS} actions replace action {other}".split())
    until(lambda: lab.vteps() == wanted, "the action that led elsewhere")

    place = f"dev {PORT} ingress pref {PREF} protocol all"
    edited = f"filter replace {place} handle {lab.rules()[mac(9)].handle:#x} flower dst_mac {mac(9)} action drop"
    run("tc", "-n", NETNS, *edited.split())
    until(lambda: lab.vteps() == wanted, "the rule whose actions were replaced: this process knows it")

    # A handle of our range in our preference is nobody's mark.
    run("tc", "-n", NETNS, *f"filter add {place} handle 0x54ffff00 flower dst_mac {mac(201)} action drop".split())
    lab.fdb("add", range(41, 42), "10.255.0.3")
    until(lambda: lab.vteps().get(mac(41)) == "10.255.0.3", "the rule of a new MAC")
    assert lab.rules()[mac(201)].handle == 0x54FFFF00
    run(*f"tc -n {NETNS} filter del {place} handle 0x54ffff00 flower".split())
    lab.fdb("del", range(41, 42), "10.255.0.3")
    until(lambda: lab.vteps() == wanted, "that it goes with its MAC")

    run(*f"tc -n {NETNS} qdisc del dev {PORT} clsact".split())
    until(lambda: lab.vteps() == wanted, "all rules, after clsact was deleted with them")

    foreign = f"filter add dev {PORT} ingress pref 10 protocol all flower dst_mac {mac(200)} action mirred egress"
    run("tc", "-n", NETNS, *foreign.split(), "redirect", "dev", "app")
    lab.fdb("add", range(40, 41), "10.255.0.3")
    until(lambda: lab.vteps().get(mac(40)) == "10.255.0.3", "the rule of a new MAC")
    assert f"dst_mac {mac(200)}" in run("tc", "-n", NETNS, "filter", "show", "dev", PORT, "ingress", "pref", "10")
    run(*f"tc -n {NETNS} filter del dev {PORT} ingress pref 10".split())
    lab.fdb("del", range(40, 41), "10.255.0.3")
    until(lambda: lab.vteps() == wanted, "that it goes with its MAC")


def test_a_second_reconciler_is_refused(lab: Lab) -> None:
    assert lab.process is not None
    alias = f"/proc/{lab.process.pid}/root/run/netns/{NETNS}"
    second = subprocess.run(
        [sys.executable, "-m", "services.reconciler"],
        env=lab.environment(NODE="n2", NETNS=alias),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert second.returncode == 78, second.stderr
    assert f"pid {lab.process.pid}" in second.stderr
    assert f"kill {lab.process.pid}" in second.stderr, "the remedy"


def test_after_kill_9_nothing_is_written_again(lab: Lab) -> None:
    before, told = lab.rules(), lab.audit()
    lab.end(signal.SIGKILL)
    assert lab.rules() == before, "rules stay without anybody"
    lab.start()
    state = until(lambda: lab.state() if lab.lines("reconciled") else None, "an answer")
    assert (state.writes, state.installed, state.problems) == (0, 40, ())
    assert lab.lines("reconciled")[-1]["verified"]
    assert {m: r.handle for m, r in lab.rules().items()} == {m: r.handle for m, r in before.items()}
    last = told[-1]
    news = until(lambda: [event for event in lab.audit() if event.incarnation != last.incarnation], "its first fact")
    assert (news[0].previous_incarnation, news[0].previous_pass_id) == (last.incarnation, last.pass_id)


def test_nats_dead_during_churn_and_the_audit_is_complete(lab: Lab) -> None:
    lab.server.kill()
    # For how long is no matter of the kernel: tests/integration/test_reconciler_bus.py takes a minute.
    deadline = time.monotonic() + 6.0
    rounds = 0
    while time.monotonic() < deadline:
        rounds += 1
        lab.fdb("add", range(100, 130), "10.255.0.3")
        lab.fdb("del", range(100, 130), "10.255.0.3")
    lab.fdb("add", range(100, 110), "10.255.0.4")
    wanted = {mac(n): "10.255.0.2" for n in range(40)} | {mac(n): "10.255.0.4" for n in range(100, 110)}
    until(lambda: lab.vteps() == wanted, "rules follow without a bus")
    assert rounds > 3
    asyncio.run(lab.server.start())
    until(lambda: replayed(lab.audit()) == wanted, "everything that was written is told, in order")
    assert lab.state().writes >= 10


def test_rules_are_kept_or_flushed_as_it_is_set(lab: Lab) -> None:
    before = lab.vteps()
    assert lab.end() == 0
    assert lab.vteps() == before
    lab.start(ON_SHUTDOWN="flush")
    assert lab.end() == 0
    assert lab.rules() == {}
    assert "THRN" not in run("tc", "-n", NETNS, "actions", "list", "action", "tunnel_key")
    until(lambda: replayed(lab.audit()) == {}, "the flush is told too")
