"""What a command of Slurm says decides whether Slurm has refused, or nothing is known of what became of it."""

from __future__ import annotations

import pytest

from services.runner.slurm.commands import SlurmError, SlurmUnavailableError, run


@pytest.mark.parametrize(
    "said",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
        "sbatch: error: Batch job submission failed: Connection reset by peer",
        "sbatch: error: Batch job submission failed: Broken pipe",
    ],
)
async def test_a_slurmctld_that_goes_away_has_refused_nothing(said: str) -> None:
    with pytest.raises(SlurmUnavailableError, match=said[:20]):
        await run(("sh", "-c", 'echo "$0" >&2; exit 1', said), timeout_s=60)


async def test_what_it_refuses_is_told() -> None:
    said = "sbatch: error: Batch job submission failed: Invalid node name specified"
    with pytest.raises(SlurmError, match="Invalid node name") as caught:
        await run(("sh", "-c", 'echo "$0" >&2; exit 1', said), timeout_s=60)
    assert not isinstance(caught.value, SlurmUnavailableError)
