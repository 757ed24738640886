"""Scripts and command lines for Slurm, every value of a job quoted. Pure.

The job's environment is in none of them: it would be visible to all users. ``sbatch`` reads it from a descriptor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import join, quote

from schemas.scheduling import WorkOrder
from services._jobs.rank_environment import places
from services.runner.slurm.core.layout import common_environment, shape
from services.runner.slurm.core.output import JOBS_FORMAT, SlurmJob, comment_of
from services.runner.slurm.core.steps import is_even

BEGUN_BEFORE = 75
"""Exit code of a batch script whose attempt has begun before (sysexits.h: EX_TEMPFAIL)."""
NOT_STARTED = 125
"""Exit code of a worker whose command could not be started here."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """How jobs are submitted, from the settings."""

    gpus_are_slots: bool = False
    """Else processors are."""
    memory_mb_per_cpu: int = 0
    """For jobs that name no memory: a processor's share of its node. 0: Slurm's default."""
    nodes: tuple[str, ...] = ()
    """In Slurm's order."""
    partition: str = ""
    account: str = ""
    qos: str = ""


def list_jobs(user: str) -> tuple[str, ...]:
    """All jobs of a user that Slurm knows."""
    return ("squeue", "--noheader", "--states=all", f"--user={user}", f"--format={JOBS_FORMAT}")


def list_nodes() -> tuple[str, ...]:
    """All nodes."""
    return ("scontrol", "show", "nodes", "--oneliner")


def submit(order: WorkOrder, lineage: str, cluster: Cluster, paths: JobPaths, environment_fd: int) -> tuple[str, ...]:
    """Submission of an attempt; on even shapes the nodes are named, else the hostfile's variable names them."""
    spec = order.spec
    assert spec is not None
    counts = shape(order.nodes)
    options = {
        "job-name": order.job,
        "comment": comment_of(order.job, order.attempt, lineage),
        "chdir": "/",
        "input": "/dev/null",
        "output": paths.batch_log,
        "open-mode": "append",
        "nodes": str(len(counts)),
        "ntasks": str(len(order.nodes)),
        "cpus-per-task": str(cpus_per_worker(order, cluster)),
        "gpus-per-task": str(spec.slots) if cluster.gpus_are_slots else "",
        "mem-per-cpu": _memory(order, cluster),
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "export-file": str(environment_fd),
    }
    if is_even(counts):
        options |= {"ntasks-per-node": str(counts[0]), "nodelist": ",".join(dict.fromkeys(order.nodes))}
    else:
        options["distribution"] = "arbitrary"
    given = (f"--{name}={value}" for name, value in options.items() if value)
    return ("sbatch", "--parsable", "--requeue", *given, paths.batch)


def cpus_per_worker(order: WorkOrder, cluster: Cluster) -> int:
    """Processors that Slurm allocates for each worker."""
    assert order.spec is not None
    if cluster.gpus_are_slots:
        return max(1, math.ceil(order.spec.cpu_cores or 1.0))
    return order.spec.slots


def _memory(order: WorkOrder, cluster: Cluster) -> str:
    assert order.spec is not None
    if order.spec.memory_bytes is None:
        return f"{cluster.memory_mb_per_cpu}M" if cluster.memory_mb_per_cpu else ""
    return f"{max(1, math.ceil(order.spec.memory_bytes / cpus_per_worker(order, cluster) / (1 << 20)))}M"


def renew(job: SlurmJob, order: WorkOrder) -> tuple[tuple[str, ...], ...]:
    """Start a held job as the next attempt on its nodes: without a start time it would wait for two minutes."""
    nodes = ",".join(dict.fromkeys(order.nodes))
    comment = comment_of(order.job, order.attempt, job.lineage)
    update = f"jobid={job.job_id}", f"comment={comment}", f"reqnodelist={nodes}", "starttime=now"
    return ("scontrol", "update", *update), ("scontrol", "release", str(job.job_id))


def terminate(job: SlurmJob) -> tuple[str, ...]:
    """SIGTERM to all processes of its workers."""
    return ("scancel", "--signal=TERM", str(job.job_id))


def requeue(job: SlurmJob) -> tuple[str, ...]:
    """End it now, and hold it in the queue."""
    return ("scontrol", "requeuehold", str(job.job_id))


def hold(job: SlurmJob) -> tuple[str, ...]:
    """Hold it in the queue."""
    return ("scontrol", "hold", str(job.job_id))


def cancel(job: SlurmJob) -> tuple[str, ...]:
    """End it."""
    return ("scancel", str(job.job_id))


# -- scripts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobPaths:
    """Files of a job and an attempt in the shared directory, absolute."""

    job: str
    """Directory of the job."""
    attempt: str
    """Directory of the attempt."""

    @property
    def batch(self) -> str:
        """What Slurm keeps: it starts `launch`."""
        return f"{self.job}/batch"

    @property
    def launch(self) -> str:
        """Written anew for each attempt."""
        return f"{self.job}/launch"

    @property
    def plan(self) -> str:
        """How the attempt's workers divide the work, if there is a plan."""
        return f"{self.attempt}/plan.json"

    @property
    def batch_log(self) -> str:
        """What Slurm says about all attempts."""
        return f"{self.job}/slurm.log"


def batch_script(paths: JobPaths) -> str:
    """Of all attempts."""
    return f"#!/bin/sh\nexec /bin/sh {quote(paths.launch)}\n"


def launch_script(order: WorkOrder, cluster: Cluster, paths: JobPaths, exported: Sequence[str] = ()) -> str:
    """Of one attempt: it begins once, starts the workers, and goes back to the queue if it was asked to stop."""
    srun = (
        "srun",
        "--distribution=arbitrary",
        f"--nodes={len(shape(order.nodes))}",
        f"--ntasks={len(order.nodes)}",
        f"--cpus-per-task={cpus_per_worker(order, cluster)}",
        *((f"--gpus-per-task={order.spec.slots}",) if cluster.gpus_are_slots and order.spec else ()),
        "--kill-on-bad-exit=1",
        "--wait=0",
        "--input=none",
        "--mpi=none",
        "--export=ALL",
        "/bin/sh",
        f"{paths.attempt}/worker",
    )
    exports = "".join(f"export {line}\n" for line in exported)
    return f"""#!/bin/sh
# Attempt {order.attempt} of {order.job}; written by Turnbuckle.
attempt={quote(paths.attempt)}
{exports}if ! mkdir "$attempt/begun"; then
    : >"$attempt/again"
    exit {BEGUN_BEFORE}
fi
code=0
if [ ! -e "$attempt/stop" ]; then
    SLURM_HOSTFILE="$attempt/hostfile" {join(srun)}
    code=$?
fi
if [ -e "$attempt/stop" ]; then
    # Slurm ends this script for it.
    scontrol requeuehold "$SLURM_JOB_ID" && exec sleep 3600
fi
exit "$code"
"""


def worker_script(order: WorkOrder, paths: JobPaths) -> str:
    """Of one attempt, run once for each worker: it sets its environment, and notes what becomes of the command."""
    spec = order.spec
    assert spec is not None
    variables = common_environment(order) | ({"TURNBUCKLE_PLAN": paths.plan} if order.plan else {})
    exports = "".join(f"export {name}={quote(value)}\n" for name, value in variables.items())
    cases = "".join(
        f"{rank}) node={quote(place.node)} LOCAL_RANK={place.local_rank} LOCAL_WORLD_SIZE={place.local_size} "
        f"NODE_RANK={place.node_rank} ;;\n"
        for rank, place in enumerate(places(order.nodes))
    )
    return f"""#!/bin/sh
# Workers of attempt {order.attempt} of {order.job}; written by Turnbuckle.
RANK=$SLURM_PROCID
attempt={quote(paths.attempt)}
exec >>"$attempt/$RANK.log" 2>&1 </dev/null
note() {{
    read -r uptime _ </proc/uptime &&
        echo "$uptime $2" >"$attempt/.$RANK.$1" &&
        (trap '' TERM && exec mv "$attempt/.$RANK.$1" "$attempt/$RANK.$1") # Slurm signals this process, too
}}
trap '[ -e "$attempt/$RANK.stopping" ] || note stopping 0' TERM
fail() {{
    echo "turnbuckle: $1"
    note exit {NOT_STARTED}
    exit {NOT_STARTED}
}}
case $RANK in
{cases}*) fail "Slurm has started a worker too many" ;;
esac
[ "$SLURMD_NODENAME" = "$node" ] || fail "Slurm has placed worker $RANK on $SLURMD_NODENAME rather than $node"
export RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK
export GROUP_RANK="$NODE_RANK"
export TURNBUCKLE_READY_FILE="$attempt/$RANK.ready"
{exports}cd {quote(spec.directory)} || fail "there is no such directory here"
note started 0 || fail "the start cannot be noted"
{join(spec.command)} &
worker=$!
while :; do
    wait "$worker"
    code=$?
    kill -0 "$worker" 2>/dev/null || break
done
note exit "$code"
# srun kills the others when one ends badly: those that still save must not be killed by the first that has saved.
[ ! -e "$attempt/stop" ] || exit 0
exit "$code"
"""


def hostfile(order: WorkOrder) -> str:
    """The node of each worker, by rank: for srun."""
    return "".join(f"{node}\n" for node in order.nodes)


def allocation(order: WorkOrder, cluster: Cluster) -> str:
    """The same nodes in Slurm's order: by it, not by names, sbatch gives each node its share."""
    places = {node: place for place, node in enumerate(cluster.nodes)}
    return "".join(f"{node}\n" for node in sorted(order.nodes, key=lambda node: (places.get(node, 0), node)))
