"""Children that are started beside gRPC's threads live: its fork handlers must not run between fork and exec."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.installation import ROOT

PROGRAM = """
import subprocess, threading
from concurrent import futures
from functools import partial
from services._runtime.child_process import die_with_parent
import grpc

server = grpc.server(futures.ThreadPoolExecutor(4))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
channels = [grpc.insecure_channel(f"127.0.0.1:{port}") for _ in range(4)]
ended = threading.Event()

def call():
    while not ended.is_set():
        for channel in channels:
            try:
                channel.unary_unary("/absent/method")(b"", timeout=0.2)
            except grpc.RpcError:
                pass

callers = [threading.Thread(target=call) for _ in range(3)]
for one in callers:
    one.start()
codes = [subprocess.run(["true"], preexec_fn=partial(die_with_parent, 9), timeout=60).returncode for _ in range(200)]
ended.set()
for one in callers:
    one.join()
server.stop(None).wait()
print(sum(code != 0 for code in codes))
"""


def test_no_child_is_aborted_by_grpc_before_its_exec() -> None:
    """Seen as "nats-server ended at once (exit status -6)"."""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("0", 0), done.stderr[-2000:]
