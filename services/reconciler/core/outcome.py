"""What an errno of a write means, and what follows from it."""

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
"""So many of the refused rules are tried again in each pass, to notice that there is room again."""


class Verdict(StrEnum):
    """What to do about a write's errno."""

    DONE = "done"
    DRIFT = "drift"
    """The kernel is not as the dump said: dump again, plan again."""
    VANISHED = "vanished"
    """Its device is gone: the next dump knows."""
    REFUSED = "refused"
    """The NIC cannot (skip_sw): the MAC goes by the bridge."""
    FULL = "full"
    """No room in the table."""
    UNSUPPORTED = "unsupported"
    """The kernel lacks the classifier or the action."""
    FATAL = "fatal"
    """No right to do it: trying again is useless."""
    BUSY = "busy"
    """The kernel is out of something for a moment: again after the backoff."""
    UNEXPECTED = "unexpected"
    """Told, and tried again after the backoff."""


_PLAIN: Final[Mapping[int, Verdict]] = {
    0: Verdict.DONE,
    errno.EEXIST: Verdict.DRIFT,
    errno.ENOENT: Verdict.DRIFT,
    errno.ESRCH: Verdict.DRIFT,
    errno.ENODEV: Verdict.VANISHED,
    errno.ENXIO: Verdict.VANISHED,
    errno.ENOSPC: Verdict.FULL,
    errno.EOPNOTSUPP: Verdict.UNSUPPORTED,
    errno.EPERM: Verdict.FATAL,
    errno.EACCES: Verdict.FATAL,
    errno.EAGAIN: Verdict.BUSY,
    errno.EBUSY: Verdict.BUSY,
    errno.EINTR: Verdict.BUSY,
    errno.ENOBUFS: Verdict.BUSY,
    errno.ENOMEM: Verdict.BUSY,
}


def verdict(operation: Operation, code: int) -> Verdict:
    """What the errno of this write means; `code` is positive, 0 for done."""
    target = operation.target
    if isinstance(target, Filter):
        if target.skip_sw and code in {errno.EINVAL, errno.EOPNOTSUPP}:
            return Verdict.REFUSED
        if code == errno.EINVAL:
            return Verdict.DRIFT  # its clsact or an action has just gone ("Unknown tunnel key action")
    if code == errno.ENOENT and operation.kind is OperationKind.ADD:
        return Verdict.UNSUPPORTED  # the kernel knows no such classifier or action; nothing else is looked up
    if code == errno.EPERM and isinstance(target, Action) and operation.kind is OperationKind.DELETE:
        return Verdict.DRIFT  # the kernel's word for "a filter binds it"
    return _PLAIN.get(code, Verdict.UNEXPECTED)


def remedies(operations: Sequence[Operation], errnos: Sequence[int]) -> tuple[Operation, ...]:
    """What has to be written at once because of failures: a wrong filter that could not be replaced is deleted.

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
        and verdict(operation, code) not in {Verdict.DONE, Verdict.VANISHED, Verdict.FATAL}
        and code != errno.ENOENT
    )


@dataclass(frozen=True, slots=True)
class Refusals:
    """Rules that the hardware did not take, kept between passes so that thousands are not tried every second."""

    errno_of: Mapping[OperationKey, int] = field(default_factory=dict)
    turn: int = 0
    """Which of them are probed next."""

    def learn(self, operations: Sequence[Operation], errnos: Sequence[int]) -> Refusals:
        """Refusals after a pass. A rule that was refused and then taken frees all: there is room again."""
        known = dict(self.errno_of)
        for operation, code in zip(operations, errnos, strict=True):
            if operation.phase is not Phase.MISSING:
                continue
            if verdict(operation, code) in {Verdict.REFUSED, Verdict.FULL}:
                known[operation.key] = code
            elif verdict(operation, code) is Verdict.DONE and known.pop(operation.key, None) is not None:
                known.clear()
        return Refusals(known, self.turn + 1)

    def hold_back(self, operations: Sequence[Operation]) -> tuple[Operation, ...]:
        """The operations without refused rules, except for `PROBES` of them, others in each turn."""
        refused = [o for o in operations if o.phase is Phase.MISSING and o.key in self.errno_of]
        if len(refused) <= PROBES:
            return tuple(operations)
        start = self.turn * PROBES % len(refused)
        probed = {operation.key for operation in (refused + refused)[start : start + PROBES]}
        return tuple(
            o for o in operations if o.phase is not Phase.MISSING or o.key not in self.errno_of or o.key in probed
        )


_TOLD: Final[Mapping[Verdict, tuple[ProblemKind, str, str]]] = {
    Verdict.REFUSED: (
        ProblemKind.REFUSED,
        "the NIC refuses rules, their MACs go by the bridge",
        "check switchdev mode and hw-tc-offload, or choose offload=prefer",
    ),
    Verdict.FULL: (
        ProblemKind.TABLE_FULL,
        "the table of rules is full, the other MACs go by the bridge",
        "raise the NIC's flow table size, or use fewer ports or MACs",
    ),
    Verdict.UNSUPPORTED: (
        ProblemKind.UNSUPPORTED,
        "the kernel lacks cls_flower, act_tunnel_key, act_mirred or clsact",
        "modprobe cls_flower act_tunnel_key act_mirred sch_ingress",
    ),
    Verdict.FATAL: (ProblemKind.FORBIDDEN, "no right to write tc rules", "run with CAP_NET_ADMIN in this namespace"),
    Verdict.UNEXPECTED: (ProblemKind.UNEXPECTED, "the kernel refused a write", "see the errno in the audit"),
}


def failures(operations: Sequence[Operation], errnos: Sequence[int]) -> tuple[Problem, ...]:
    """Failures that somebody should know of, one problem for each kind, device and errno.

    Raises:
        ValueError: The sequences differ in length.
    """
    found: dict[tuple[Verdict, int, int], list[str]] = {}
    for operation, code in zip(operations, errnos, strict=True):
        meaning = verdict(operation, code)
        if meaning in _TOLD:
            ifindex = 0 if isinstance(operation.target, Action) else operation.target.ifindex
            found.setdefault((meaning, ifindex, code), []).append(operation.key[2])
    return tuple(
        problem(
            _TOLD[meaning][0],
            f"ifindex {ifindex}" if ifindex else "actions",
            f"{_TOLD[meaning][1]} [{errno.errorcode.get(code, code)}]",
            _TOLD[meaning][2],
            subjects,
        )
        for (meaning, ifindex, code), subjects in sorted(found.items())
    )
