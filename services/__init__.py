"""Turnbuckle's services: each sub-package is deployable on its own; none imports another."""

import os

# gRPC's fork handlers start its threads again in the child, also in one that only waits for its exec: those poll
# descriptors that are closed by then and abort it (SIGABRT), 25 of 400 times beside busy channels. We never use a
# channel of the parent in a child. It is read when gRPC is imported (gRPC core, doc/fork_support.md).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
