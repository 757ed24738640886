"""What a worker of an elastic training imports before it is ready: in a change the others would wait for it."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, sys
from services.trainer.worker.elastic import load_optimizers, torch

before = "torch._dynamo" in sys.modules
load_optimizers()
loaded = set(sys.modules)
parameter = torch.nn.Parameter(torch.zeros(3))
for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
    optimizer = kind([parameter], lr=0.1)
    parameter.grad = torch.ones(3)
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
print(json.dumps([before, sorted(set(sys.modules) - loaded)]))
"""


def test_the_optimizer_of_a_worker_that_joins_imports_next_to_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=False
    )

    assert done.returncode == 0, done.stderr
    had_it, later = json.loads(done.stdout)
    assert not had_it, "it is imported anyway: load_optimizers is of no use any more"
    assert [name for name in later if not name.startswith("torch.optim.")] == []
