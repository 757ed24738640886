"""The trainer's ranks as users start them: by torchrun and the installed command, with a rank that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import trainer_job
from tests.support.trainer_plans import plan_of

BIN = Path(sys.executable).parent
USER = Path(next(iter(trainer_job.__path__)))
pytestmark = [pytest.mark.host, pytest.mark.slow]
"""torchrun and each of four ranks import torch: half a minute of a processor."""


LATE = 'if [ "$RANK$TORCHELASTIC_RESTART_COUNT" = 11 ]; then sleep 3; fi; exec "$@"'
"""Started again, rank 1 comes after rank 0, which is not to connect to the one of the start before."""


def test_torchrun_starts_the_ranks_again_after_one_was_killed(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan_of([1, 2], [1, 2], [3, 1]).model_dump_json())
    launcher = [BIN / "torchrun", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--no-python"]
    rank = [
        "sh",
        "-c",
        LATE,
        "sh",
        BIN / "turnbuckle",
        "run",
        "trainer-worker",
        "plan.json",
        f"{USER}/small_model.py:build",
    ]
    given = ["--data", f"{USER}/small_data.py:lines", "--loss", f"{USER}/small_model.py:loss_that_signals"]
    saving = ["--steps", "8", "--checkpoint", "saved", "--checkpoint-every", "3", "--device", "cpu"]
    environment = os.environ | {"SIGNAL": "SIGKILL", "SIGNALLED_RANK": "0", "GLOO_SOCKET_IFNAME": "lo"}

    done = subprocess.run(
        [*launcher, *rank, *given, *saving],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    # rank 0 is killed in its 7th step; what goes on after step 6 has no 7th call any more
    assert done.returncode == 0, done.stderr
    assert "goes on after step 6" in done.stderr
    assert '"step": 8' in done.stdout
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["step-000000006", "step-000000008"]
