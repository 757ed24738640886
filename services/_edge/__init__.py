"""What a network edge's programs share: FRR's sockets, drains, kernel support, the fast path's tables and heartbeat.

Here: what at least two of reconciler, fast path and fabric have to agree on. Not here: what one of them does alone; and
netlink, namespaces and locks, which other services use, too (`services._host`).
"""
