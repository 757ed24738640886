"""Where a process of the benchmark leaves what it has noted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def leave_trace(trace: dict[str, Any]) -> None:
    """Write the file that `tests.bench.cluster.Process` reads when the process has ended."""
    Path(os.environ["BENCH_TRACE"]).write_text(json.dumps(trace), encoding="utf-8")
