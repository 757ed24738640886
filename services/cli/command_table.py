"""All commands by heading. A test compares each sentence with the command's own help."""

from __future__ import annotations

from typing import Final

from services._runtime.command.lazy import LazyCommand

_LIMITS: Final = "Containers and limits"
_NETWORK: Final = "Network edge (THORN)"
_JOBS: Final = "Training jobs: run them, what they take and cost"
_OPERATION: Final = "Services and operation"

COMMANDS: Final = (
    LazyCommand(
        "up",
        "Start NATS, allocators and agent, each its own process, and run until Ctrl-C (twice: at once).",
        _LIMITS,
        "services.cli.up.command",
        "up_command",
    ),
    LazyCommand(
        "apply",
        "Announce an application's limits and create its containers, with their first limits.",
        _LIMITS,
        "services.cli.apps.apply",
        "apply_command",
    ),
    LazyCommand(
        "delete",
        "Remove the containers that `turnbuckle apply` made for APP, then withdraw APP's limits.",
        _LIMITS,
        "services.cli.apps.delete",
        "delete_command",
    ),
    LazyCommand(
        "exec",
        "Run CMD in a control group of its own as container NAME of application APP.",
        _LIMITS,
        "services.cli.apps.exec",
        "exec_command",
    ),
    LazyCommand(
        "apps",
        "List the applications: limits, containers, what is held and free, mode, policy, and who decides.",
        _LIMITS,
        "services.cli.apps.list",
        "apps_command",
    ),
    LazyCommand(
        "top",
        "Show each container's usage against its limit, over time, with the pools and reserves of its application.",
        _LIMITS,
        "services.cli.apps.top",
        "top_command",
    ),
    LazyCommand(
        "explain",
        "Explain why APP's limits are what they are, and why a container was granted memory, denied it, or killed.",
        _LIMITS,
        "services.cli.apps.explain",
        "explain_command",
    ),
    LazyCommand(
        "savings",
        "Show what limits saved of each application and day: core-hours, GiB-hours, money, and what was throttled.",
        _LIMITS,
        "services.cli.apps.savings",
        "savings_command",
    ),
    LazyCommand(
        "console",
        "Show limits against usage, events, rules, paths and predictions in the browser, live, until Ctrl-C.",
        _LIMITS,
        "services.console.commands",
        "console_command",
    ),
    LazyCommand(
        "run",
        "Run a service: its settings are environment variables, its log goes to stderr, SIGTERM ends it.",
        _OPERATION,
        "services.cli.run_command",
        "app",
    ),
    LazyCommand(
        "doctor",
        "Examine this host and the bus: what is supported, how memory is guarded, who decides, what was left behind.",
        _OPERATION,
        "services.cli.doctor.command",
        "doctor_command",
    ),
    LazyCommand(
        "tap",
        "Print every message of SUBJECT as one line of JSON. Ends cleanly on Ctrl-C and when the reader goes away.",
        _OPERATION,
        "services.cli.nats.tap",
        "tap_command",
    ),
    LazyCommand(
        "nats",
        "Configuration of a NATS server with one user per service, and what services store there.",
        _OPERATION,
        "services.cli.nats.command",
        "app",
    ),
    LazyCommand(
        "swap",
        "A disk as swap, whose busy parts are mirrored to free memory of other hosts.",
        _OPERATION,
        "services.memory.commands",
        "app",
    ),
    LazyCommand(
        "fabric",
        "A host's part of the network: devices, addresses, FRR.",
        _NETWORK,
        "services.fabric.commands",
        "app",
    ),
    LazyCommand(
        "paths",
        "Show each node's next hops to each VTEP as the kernel, FRR and BFD have them, and why rules are not in force.",
        _NETWORK,
        "services.cli.network.command",
        "paths_command",
        "PATHS_EXAMPLES",
    ),
    LazyCommand(
        "rules",
        "List the tc rules on NODE's managed ports: whose packets go to which VTEP, and whether the NIC has them.",
        _NETWORK,
        "services.cli.network.command",
        "rules_command",
        "RULES_EXAMPLES",
    ),
    LazyCommand(
        "lab",
        "Networks on this machine to try things on: two switches per host (needs FRR), a shared uplink. Needs root.",
        _NETWORK,
        "services.fabric.testbed.commands",
        "lab_app",
    ),
    LazyCommand(
        "profile",
        "Run a training command locally for some minutes and record what it uses.",
        _JOBS,
        "services.collector.commands",
        "profile_command",
    ),
    LazyCommand(
        "features",
        "Read a training task's features from its PyTorch module.",
        _JOBS,
        "services.collector.commands",
        "features_command",
    ),
    LazyCommand(
        "advise",
        "Predict time and cost of a training job on every configuration, and rank them.",
        _JOBS,
        "services.cli.advise.command",
        "advise_command",
    ),
    LazyCommand(
        "devices",
        "Find the devices that a training job may use, and write them as the cluster.yaml of `turnbuckle plan`.",
        _JOBS,
        "services.collector.commands",
        "devices_command",
    ),
    LazyCommand(
        "layers",
        "Measure time and memory of a model's layers on one kind of device, for `turnbuckle plan`.",
        _JOBS,
        "services.collector.commands",
        "layers_command",
    ),
    LazyCommand(
        "plan",
        "Divide a training job over unequal devices: samples, micro-batches and state of each, or its layers; and why.",
        _JOBS,
        "services.planner.commands.plan",
        "plan_command",
    ),
    LazyCommand(
        "train",
        "Train by a plan: run its ranks on this machine; for a plan over several, print the line to run on each.",
        _JOBS,
        "services.trainer.commands.train",
        "train_command",
    ),
    LazyCommand(
        "jobs",
        "Run training jobs on your nodes; and records of jobs: what ran where, what it took and cost.",
        _JOBS,
        "services.cli.advise.jobs",
        "app",
    ),
    LazyCommand(
        "prices",
        "The price catalogue: dated snapshots, listed and refreshed.",
        _JOBS,
        "services.advisor.commands",
        "prices_app",
    ),
    LazyCommand(
        "vertex",
        "Submit a grid of training jobs to Vertex AI, and take in what they took and cost.",
        _JOBS,
        "services.collector.commands",
        "vertex_app",
    ),
    LazyCommand(
        "emulate",
        "Run a grid of training jobs on emulated machines of this host (root).",
        _JOBS,
        "services.collector.commands",
        "emulate_command",
    ),
)
