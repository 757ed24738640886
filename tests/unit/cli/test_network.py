"""`turnbuckle rules`, `paths` and `tap --text`: what is printed, asked, and the exit codes."""

import json

import pytest
from typer.testing import CliRunner

from schemas.codec import encode
from schemas.network import (
    DiffReply,
    NetworkStateReply,
    PathState,
    RouteEvent,
    RouteKind,
    RulesReply,
    RuleState,
    TcEvent,
    TcObject,
    TcOperation,
    TcOperationKind,
)
from services.cli.main import app
from services.cli.nats.tap import sentence
from services.cli.network import command as network

MAC = "02:00:00:00:00:02"
OPERATION = TcOperation(
    operation=TcOperationKind.REPLACE,
    object=TcObject.FILTER,
    device="rep0",
    mac=MAC,
    before="10.255.0.3",
    after="10.255.0.2",
    reason="leads elsewhere",
)


def state(*paths, problems=()):
    return NetworkStateReply(
        node="n1",
        incarnation=1,
        offload="prefer",
        full_reconciles=1,
        writes=4,
        last_reconcile_age_s=0.1,
        ports=("rep0",),
        encapsulation_device="vxenc0",
        vteps=("10.255.0.2",),
        macs=1,
        installed=1,
        in_hw=0,
        not_in_hw=1,
        unmanaged=0,
        paths=paths,
        problems=problems,
    )


def path(*, agree):
    return PathState(
        destination="10.255.0.2",
        kernel=("169.254.0.1@p2",),
        frr=("p2",) if agree else ("p1", "p2"),
        bfd_up=("p2",),
        agree=agree,
        reason="" if agree else "the kernel forwards over p2, FRR says p1 and p2",
    )


@pytest.fixture
def command(monkeypatch):
    """Runs the command against one answer."""

    def run(function, answer, *arguments):
        async def ask(*_):
            return answer

        monkeypatch.setattr(network, function, ask)
        return CliRunner().invoke(app, list(arguments))

    return run


def test_rules(command):
    rules = (
        RuleState(device="rep0", mac=MAC, vtep="10.255.0.2", vni=100, pref=21_000, handle=7, in_hw=False),
        RuleState(device="rep0", mac="", vtep="", vni=0, pref=10, ours=False, note="u32 of somebody else"),
    )
    reply = RulesReply(node="n1", total=3, rules=rules)

    shown = command("_query_rules", reply, "rules", "n1")
    assert shown.exit_code == 0
    assert all(text in shown.stdout for text in (MAC, "10.255.0.2", "not_in_hw", "u32 of somebody else", "2 of 3"))

    parsed = json.loads(command("_query_rules", reply, "rules", "n1", "--json").stdout)
    assert [rule["mac"] for rule in parsed["rules"]] == [MAC, ""]


def test_a_difference_is_an_exit_code(command):
    right = DiffReply(node="n1", desired=1, installed=1, unmanaged=0, operations=(), total=0)
    assert command("_query_diff", right, "rules", "n1", "--diff").exit_code == 0

    wrong = right.model_copy(update={"installed": 0, "operations": (OPERATION,), "total": 1, "problem": "no vxenc0"})
    shown = command("_query_diff", wrong, "rules", "n1", "--diff")
    assert shown.exit_code == 1
    assert f"replace filter {MAC} on rep0: 10.255.0.3 -> 10.255.0.2 (leads elsewhere)" in shown.stdout
    assert "no vxenc0" in shown.stdout


def test_paths(command):
    shown = command("_query_paths", [state(path(agree=True))], "paths", "n1")
    assert shown.exit_code == 0
    assert "agree" in shown.stdout
    assert "169.254.0.1" not in shown.stdout

    shown = command("_query_paths", [state(path(agree=False), problems=("rep0: missing",))], "paths")
    assert shown.exit_code == 1
    assert "FRR says p1 and p2" in shown.stdout
    assert "rep0: missing" in shown.stdout
    parsed = json.loads(command("_query_paths", [state(path(agree=False))], "paths", "--json").stdout)
    assert parsed[0]["paths"][0]["agree"] is False


@pytest.mark.parametrize("arguments", [("rules", "--help"), ("paths", "--help")])
def test_help_has_examples(arguments):
    shown = CliRunner().invoke(app, list(arguments))
    assert shown.exit_code == 0
    assert f"turnbuckle {arguments[0]} gpu-07" in shown.stdout


def test_tap_lines():
    common = {"node": "n1", "incarnation": 1, "seq": 1, "source": "auditor", "time_ns": 1}
    alarm = RouteEvent(
        kind=RouteKind.DISAGREEMENT, destination="10.255.0.2", alarm=True, reason="they differ", **common
    )
    assert sentence(encode(alarm)) == "ALARM n1 auditor disagreement 10.255.0.2: they differ"
    moved = RouteEvent(kind=RouteKind.ROUTE, destination="10.255.0.2/32", also=("x",), before=("p1", "p2"), **common)
    assert sentence(encode(moved)) == "n1 auditor route 10.255.0.2/32 and 1 more: p1, p2 -> nothing"
    override = RouteEvent(
        kind=RouteKind.OVERRIDE,
        destination="10.255.0.2/32",
        interface="p1",
        after=("p2",),
        cause="bfd",
        latency_us=400,
        **common,
    )
    assert sentence(encode(override)).endswith("p2 without p1 (bfd), in the kernel after 400 us")
    failed = OPERATION.model_copy(update={"errno": 28})
    event = TcEvent(
        node="n1",
        incarnation=1,
        first_pass_id=3,
        pass_id=5,
        time_ns=1,
        causes={"fdb": 2},
        desired=2,
        installed=1,
        lag_us=1_200,
        operations=(OPERATION, failed),
        problem="the table is full",
    )
    assert sentence(encode(event)) == (
        "n1 passes 3-5 (fdb 2): 1 replace filter, 1 failed; 1/2 rules, not verified after 1.2 ms: "
        f"replace filter {MAC} on rep0: 10.255.0.3 -> 10.255.0.2 (leads elsewhere); "
        f"replace filter {MAC} on rep0: 10.255.0.3 -> 10.255.0.2 FAILED No space left on device (leads elsewhere): "
        "the table is full"
    )
    gap = event.model_copy(update={"previous_incarnation": 7, "previous_pass_id": 41, "gap": True, "operations": ()})
    assert "not verified after 1.2 ms; the audit may lack passes up to 41 of incarnation 7" in sentence(encode(gap))
    assert sentence(b"") is None
    assert sentence(b"nonsense") is None
