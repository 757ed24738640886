"""Orders and answers, for tests of the agent's node."""

from __future__ import annotations

from schemas.limits import LimitUpdate


def update(rows, *, epoch=1, seq=1, incarnation=7, node="n1", apps=("shop",)):
    """An order; rows: container -> (quota_us, limit_bytes)."""
    return LimitUpdate.build(
        list(rows),
        {"quota_us": [row[0] for row in rows.values()], "limit_bytes": [row[1] for row in rows.values()]},
        node=node,
        incarnation=incarnation,
        epoch=epoch,
        seq=seq,
        time_ns=0,
        apps=apps,
    )


def reserve_order(given_bytes, *, epoch=1, seq=1, incarnation=7, most_bytes=0, apps=("shop",)):
    """A fence that carries the same reserve for every application."""
    return LimitUpdate.build(
        [],
        {"quota_us": [], "limit_bytes": []},
        node="n1",
        incarnation=incarnation,
        epoch=epoch,
        seq=seq,
        time_ns=0,
        apps=apps,
        reserve_given_bytes=(given_bytes,) * len(apps),
        container_max_bytes=(most_bytes,) * len(apps),
    )


def reply_rows(reply):
    """By container."""
    return {row["container"]: row for row in reply.rows()}


def send(node, message, now_ns=0):
    """Carry out; the replies that are settled, and those that will be."""
    replies = []
    node.apply(message, now_ns, replies.append)
    return replies
