"""Meaning of a write's errno, and the resulting action."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from services._host.netlink.objects import Action, Filter
from services.reconciler.core.operation import Operation, OperationKey, OperationKind, Phase
from services.reconciler.core.problems import Problem, ProblemKind, problem

PROBES: Final = 4
"""Rejected rules that are retried in each reconcile, to notice free space in the hardware."""


class ErrnoAction(StrEnum):
    """Action on a write's errno."""

    DONE = "done"
    DRIFT = "drift"
    """The kernel differs from the dump: dump and plan again."""
    VANISHED = "vanished"
    """The device is gone: the next dump shows it."""
    REFUSED = "refused"
    """The NIC rejects it (skip_sw): the MAC goes by the bridge."""
    FULL = "full"
    """The hardware's table is full."""
    UNSUPPORTED = "unsupported"
    """The kernel lacks the classifier or the action."""
    FATAL = "fatal"
    """Missing capability: a retry is useless."""
    BUSY = "busy"
    """The kernel is temporarily out of a resource: retry after the backoff."""
    UNEXPECTED = "unexpected"
    """Reported, and retried after the backoff."""


_ACTIONS: Final[Mapping[int, ErrnoAction]] = {
    0: ErrnoAction.DONE,
    errno.EEXIST: ErrnoAction.DRIFT,
    errno.ENOENT: ErrnoAction.DRIFT,
    errno.ESRCH: ErrnoAction.DRIFT,
    errno.ENODEV: ErrnoAction.VANISHED,
    errno.ENXIO: ErrnoAction.VANISHED,
    errno.ENOSPC: ErrnoAction.FULL,
    errno.EOPNOTSUPP: ErrnoAction.UNSUPPORTED,
    errno.EPERM: ErrnoAction.FATAL,
    errno.EACCES: ErrnoAction.FATAL,
    errno.EAGAIN: ErrnoAction.BUSY,
    errno.EBUSY: ErrnoAction.BUSY,
    errno.EINTR: ErrnoAction.BUSY,
    errno.ENOBUFS: ErrnoAction.BUSY,
    errno.ENOMEM: ErrnoAction.BUSY,
}


def errno_action(operation: Operation, code: int) -> ErrnoAction:
    """The action on the errno of this write; `code` is positive, 0 for success."""
    target = operation.target
    if isinstance(target, Filter):
        if target.skip_sw and code in {errno.EINVAL, errno.EOPNOTSUPP}:
            return ErrnoAction.REFUSED
        if code == errno.EINVAL:
            return ErrnoAction.DRIFT  # its clsact or an action was just deleted ("Unknown tunnel key action")
    if code == errno.ENOENT and operation.kind is OperationKind.ADD:
        return ErrnoAction.UNSUPPORTED  # the kernel lacks the classifier or action: an ADD looks up nothing else
    if code == errno.EPERM and isinstance(target, Action) and operation.kind is OperationKind.DELETE:
        return ErrnoAction.DRIFT  # the kernel's errno for "bound by a filter"
    return _ACTIONS.get(code, ErrnoAction.UNEXPECTED)


def compensating_deletes(operations: Sequence[Operation], errnos: Sequence[int]) -> tuple[Operation, ...]:
    """Deletes of wrong filters that could not be replaced.

    Raises:
        ValueError: The sequences differ in length.
    """
    return tuple(
        Operation(
            OperationKind.DELETE,
            operation.before,
            Phase.WRONG,
            operation.before,
            "leads elsewhere, and replacing it failed",
        )
        for operation, code in zip(operations, errnos, strict=True)
        if operation.kind is OperationKind.REPLACE
        and isinstance(operation.before, Filter)
        and errno_action(operation, code) not in {ErrnoAction.DONE, ErrnoAction.VANISHED, ErrnoAction.FATAL}
        and code != errno.ENOENT
    )


@dataclass(frozen=True, slots=True)
class RejectedRules:
    """Rules that the hardware rejected, kept between reconciles so that thousands are not retried every second."""

    errno_of: Mapping[OperationKey, int] = field(default_factory=dict)
    turn: int = 0
    """Selects those that are retried next."""

    def updated(self, operations: Sequence[Operation], errnos: Sequence[int]) -> RejectedRules:
        """State after a reconcile. A rejected rule that is accepted later clears all: there is space again."""
        known = dict(self.errno_of)
        for operation, code in zip(operations, errnos, strict=True):
            if operation.phase is not Phase.MISSING:
                continue
            if errno_action(operation, code) in {ErrnoAction.REFUSED, ErrnoAction.FULL}:
                known[operation.key] = code
            elif errno_action(operation, code) is ErrnoAction.DONE and known.pop(operation.key, None) is not None:
                known.clear()
        return RejectedRules(known, self.turn + 1)

    def without_rejected(self, operations: Sequence[Operation]) -> tuple[Operation, ...]:
        """The operations without rejected rules, except `PROBES` of them, others in each turn."""
        refused = [o for o in operations if o.phase is Phase.MISSING and o.key in self.errno_of]
        if len(refused) <= PROBES:
            return tuple(operations)
        start = self.turn * PROBES % len(refused)
        probed = {operation.key for operation in (refused + refused)[start : start + PROBES]}
        return tuple(
            o for o in operations if o.phase is not Phase.MISSING or o.key not in self.errno_of or o.key in probed
        )


_PROBLEMS: Final[Mapping[ErrnoAction, tuple[ProblemKind, str, str]]] = {
    ErrnoAction.REFUSED: (
        ProblemKind.REFUSED,
        "the NIC refuses rules, their MACs go by the bridge",
        "check switchdev mode and hw-tc-offload, or choose offload=prefer",
    ),
    ErrnoAction.FULL: (
        ProblemKind.TABLE_FULL,
        "the table of rules is full, the other MACs go by the bridge",
        "raise the NIC's flow table size, or use fewer ports or MACs",
    ),
    ErrnoAction.UNSUPPORTED: (
        ProblemKind.UNSUPPORTED,
        "the kernel lacks cls_flower, act_tunnel_key, act_mirred or clsact",
        "modprobe cls_flower act_tunnel_key act_mirred sch_ingress",
    ),
    ErrnoAction.FATAL: (
        ProblemKind.FORBIDDEN,
        "no right to write tc rules",
        "run with CAP_NET_ADMIN in this namespace",
    ),
    ErrnoAction.UNEXPECTED: (ProblemKind.UNEXPECTED, "the kernel refused a write", "see the errno in the audit"),
}


def failure_problems(operations: Sequence[Operation], errnos: Sequence[int]) -> tuple[Problem, ...]:
    """Problems to report, one for each kind, device and errno.

    Raises:
        ValueError: The sequences differ in length.
    """
    found: dict[tuple[ErrnoAction, int, int], list[str]] = {}
    for operation, code in zip(operations, errnos, strict=True):
        action = errno_action(operation, code)
        if action in _PROBLEMS:
            ifindex = 0 if isinstance(operation.target, Action) else operation.target.ifindex
            found.setdefault((action, ifindex, code), []).append(operation.key[2])
    return tuple(
        problem(
            _PROBLEMS[action][0],
            f"ifindex {ifindex}" if ifindex else "actions",
            f"{_PROBLEMS[action][1]} [{errno.errorcode.get(code, code)}]",
            _PROBLEMS[action][2],
            subjects,
        )
        for (action, ifindex, code), subjects in sorted(found.items())
    )
