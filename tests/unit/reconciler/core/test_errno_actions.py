"""What an errno means, and what follows: drift, refusals of the hardware, a table that is full."""

from __future__ import annotations

import errno

import pytest

from services._host.netlink.objects import Action, ActionKind, Clsact, FdbEntry, Filter
from services.reconciler.core.config import OffloadPolicy
from services.reconciler.core.errno_actions import (
    PROBES,
    ErrnoAction,
    RejectedRules,
    compensating_deletes,
    errno_action,
    failure_problems,
)
from services.reconciler.core.operation import Operation, OperationKind, Phase
from services.reconciler.core.problems import ProblemKind
from tests.support.edge_host import EdgeHost, another, failing, remote_mac, tunnel_to, vtep
from tests.support.model_kernel import Hardware

A = remote_mac(1)
RULE = Filter(5, 21_000, 0x54000000, "flower", A)
HARD = Filter(5, 21_000, 0x54000000, "flower", A, skip_sw=True)
KEY = Action(ActionKind.TUNNEL_KEY, 9, b"THRN")
ADD, REPLACE, DELETE = OperationKind


@pytest.mark.parametrize(
    ("target", "kind", "code", "meaning"),
    [
        (RULE, ADD, 0, ErrnoAction.DONE),
        (RULE, ADD, errno.EEXIST, ErrnoAction.DRIFT),
        (RULE, ADD, errno.EINVAL, ErrnoAction.DRIFT),
        (RULE, DELETE, errno.ENOENT, ErrnoAction.DRIFT),
        (RULE, ADD, errno.ENOENT, ErrnoAction.UNSUPPORTED),
        (RULE, ADD, errno.ENODEV, ErrnoAction.VANISHED),
        (RULE, ADD, errno.ENXIO, ErrnoAction.VANISHED),
        (RULE, ADD, errno.EOPNOTSUPP, ErrnoAction.UNSUPPORTED),
        (HARD, ADD, errno.EOPNOTSUPP, ErrnoAction.REFUSED),
        (HARD, REPLACE, errno.EINVAL, ErrnoAction.REFUSED),
        (HARD, ADD, errno.ENOSPC, ErrnoAction.FULL),
        (RULE, ADD, errno.EPERM, ErrnoAction.FATAL),
        (RULE, DELETE, errno.EPERM, ErrnoAction.FATAL),
        (KEY, DELETE, errno.EPERM, ErrnoAction.DRIFT),
        (KEY, ADD, errno.EPERM, ErrnoAction.FATAL),
        (KEY, ADD, errno.EINVAL, ErrnoAction.UNEXPECTED),
        (KEY, ADD, errno.ENOENT, ErrnoAction.UNSUPPORTED),
        (Clsact(5), ADD, errno.EEXIST, ErrnoAction.DRIFT),
        (Clsact(5), ADD, errno.EACCES, ErrnoAction.FATAL),
        (RULE, ADD, errno.ENOMEM, ErrnoAction.BUSY),
        (RULE, ADD, errno.EINTR, ErrnoAction.BUSY),
        (FdbEntry(5, A, own=False), REPLACE, errno.EIO, ErrnoAction.UNEXPECTED),
    ],
)
def test_what_an_errno_means(target, kind, code, meaning):
    assert errno_action(Operation(kind, target, Phase.MISSING), code) is meaning


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSPC, errno.EEXIST, errno.ENOMEM, errno.EOPNOTSUPP])
def test_a_wrong_rule_that_cannot_be_replaced_is_deleted_at_once(code):
    """A wrong rule is a black hole, none is the bridge."""
    host = EdgeHost()
    host.config = another(host.config, application_macs={"rep0": ()})
    host.announce(A, vtep(2))
    host.settle()
    host.announce(A, vtep(3))
    host.kernel.fault = failing(code, 1, lambda operation: operation.phase is Phase.WRONG)
    host.run()
    assert host.kernel.leads(host.index("rep0"), A, host.config.pref) is None
    host.settle()
    assert host.installed() == host.expected()


@pytest.mark.parametrize("code", [0, errno.ENODEV, errno.EPERM, errno.ENOENT])
def test_nothing_is_deleted_where_that_is_needless_or_useless(code):
    operation = Operation(REPLACE, RULE, Phase.WRONG, RULE)
    assert compensating_deletes([operation], [code]) == ()


def test_one_bad_write_stops_no_other():
    host = EdgeHost()
    for number in range(10):
        host.announce(remote_mac(number), vtep(2))
    host.kernel.fault = lambda operation: errno.EIO if operation.key[2] == remote_mac(4) else 0
    host.run()
    assert {mac for _, mac in host.installed()} == {remote_mac(number) for number in range(10)} - {remote_mac(4)}


def required(capacity: int, macs: int) -> EdgeHost:
    host = EdgeHost()
    host.kernel.hardware = Hardware(capacity)
    host.config = another(host.config, application_macs={"rep0": ()}, offload=OffloadPolicy.REQUIRE)
    for number in range(macs):
        host.announce(remote_mac(number), vtep(2))
    return host


def test_a_full_table_costs_a_few_probes_a_pass_and_recovers_when_there_is_room():
    host = required(capacity=10, macs=40)
    refusals = RejectedRules()
    operations, errnos = host.run(refusals)
    assert errnos.count(errno.ENOSPC) == 30
    (told,) = failure_problems(operations, errnos)
    assert (told.kind, len(told.subjects)) == (ProblemKind.TABLE_FULL, 30)
    refusals = refusals.updated(operations, errnos)
    probed = set()
    for _ in range(8):
        operations, errnos = host.run(refusals)
        assert errnos == [errno.ENOSPC] * PROBES
        probed.update(operation.key for operation in operations)
        refusals = refusals.updated(operations, errnos)
    assert len(probed) == 30  # each has its turn: 8 passes x 4 probes cover them
    host.kernel.hardware = Hardware(100)
    refusals = refusals.updated(*host.run(refusals))
    assert not refusals.errno_of  # one was taken, so all are tried again
    host.run(refusals)
    assert len(host.kernel.filters) == 40
    assert host.due() == ()


def test_a_mac_that_the_nic_cannot_match_goes_by_the_bridge():
    host = required(capacity=100, macs=3)
    host.kernel.hardware = Hardware(refused=frozenset({A}))
    operations, errnos = host.run()
    assert [problem.kind for problem in failure_problems(operations, errnos)] == [ProblemKind.REFUSED]
    assert {mac for _, mac in host.installed()} == {remote_mac(0), remote_mac(2)}


def test_without_hardware_nothing_is_installed_and_that_is_told():
    host = required(capacity=0, macs=2)
    host.kernel.hardware = None
    operations, errnos = host.run()
    assert [problem.kind for problem in failure_problems(operations, errnos)] == [ProblemKind.REFUSED]
    assert (host.kernel.filters, host.kernel.actions) == ({}, {})


def test_failures_name_device_errno_and_remedy():
    operations = [Operation(ADD, RULE, Phase.MISSING), Operation(ADD, KEY, Phase.ACTIONS)]
    rule, action = failure_problems(operations, [errno.EPERM, errno.ENOENT])
    assert (rule.kind, rule.place) == (ProblemKind.FORBIDDEN, "ifindex 5")
    assert "EPERM" in rule.text
    assert "CAP_NET_ADMIN" in rule.text
    assert (action.kind, action.place) == (ProblemKind.UNSUPPORTED, "actions")
    assert "modprobe" in action.text


def test_drift_is_no_failure_to_tell_of():
    operations = [Operation(ADD, RULE, Phase.MISSING)]
    assert failure_problems(operations, [errno.EEXIST]) == ()


def test_every_errno_and_operation_must_be_there():
    with pytest.raises(ValueError, match="shorter"):
        failure_problems([Operation(ADD, RULE, Phase.MISSING)], [])


def test_a_tunnels_key_names_the_operation_whatever_it_sets():
    first = Operation(ADD, Action(ActionKind.TUNNEL_KEY, 9, tunnel=tunnel_to(vtep(2))), Phase.ACTIONS)
    second = Operation(DELETE, Action(ActionKind.TUNNEL_KEY, 9, tunnel=tunnel_to(vtep(3))), Phase.UNUSED)
    assert first.key == second.key == ("action", 9, "tunnel_key")
