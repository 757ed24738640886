# Turnbuckle. `make` lists the targets. Everything is installed into .venv, with the versions of constraints.txt.
#   PYTHON=...  interpreter for .venv (3.11 or later; default: the first usable one)
#   ROOM=...    make test-host: only the parts of this room; CHANGED=REVISION: only parts that differ from it
#   ARGS=...    options for the program that the target runs, such as make run ARGS="--for 30 --json"

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
export PYTHON
# Where a shell forbids bytecode, each of the hundreds of processes that tests start would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
ANYWHERE := tests/unit tests/integration tests/contract tests/bench/tests
# .ci/run takes scripts.rerun instead, which runs what failed once more, alone.
PYTEST ?= $(BIN)/python -m pytest
ON_ALL_CORES := --numprocesses auto --dist loadfile --no-loadscope-reorder
FRESH := tests/unit/schemas/test_schema_snapshots.py tests/unit/test_docs_fresh.py tests/unit/test_dashboards.py tests/unit/test_figures.py
SOURCE_RULES := tests/unit/test_flaky_ledger.py tests/unit/test_words.py tests/unit/test_purity.py tests/unit/schemas/test_subject_discipline.py
STAMP_RUN := .venv/installed-run
STAMP_DEV := .venv/installed-dev
INSTALL_INPUTS := pyproject.toml constraints.txt scripts/make_venv.sh
VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)
LOAD = for target in $(if $(KIND),kind) $(if $(K3S),k3s); do scripts/load_images.sh $$target $(ARGS:%=turnbuckle-%:$(VERSION)); done
# A copied or moved checkout needs an environment of its own.
ifneq ($(shell cat .venv/checkout 2>/dev/null),$(CURDIR))
INSTALL_INPUTS += anew
endif

.PHONY: help run kernel console check test test-processes test-bench test-deep test-host soak-host test-vm vm-shell flaky lint types contracts fresh house docs asyncapi-page snapshots bench-tick bench-scale bench-flood bench-latency bench-reaction bench-floor bench-loop bench-escra bench-escra-quick bench-memory bench-thorn bench-thorn-rules bench-thorn-storm bench-thorn-job bench-advisor bench-runtimes bench-scheduler bench-interleave bench-planner bench-remote-memory bench-trainer bench-unequal bench-console fuzz fuzz-plans fuzz-plan-files soak soak-jobs soak-swap images images-offline format clean anew bench-gpu bench-pipelines bench-elastic bench-aggregation

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' Makefile

run: $(STAMP_RUN)  ## Install, start everything with the demo and show the live view
	@$(BIN)/turnbuckle up --demo $(ARGS)

kernel:  ## Build the kernel's own programs (needs clang, bpftool and libbpf-dev); agents on this host then read by them
	@$(MAKE) -C kernel

check: lint types contracts fresh house  ## Style, types, import contracts, schema snapshots, generated files, structure (1 minute)

test: $(STAMP_DEV)  ## Tests of the parts by themselves, on all cores (3 minutes on 2)
	$(PYTEST) tests/unit $(patsubst %,--ignore=%,$(FRESH) $(SOURCE_RULES)) -m "not host" $(ON_ALL_CORES) $(ARGS)

test-processes: $(STAMP_DEV)  ## Services and commands as processes, both buses by one suite; needs no daemon but nats-server (3 minutes on 2)
	$(PYTEST) tests/integration tests/contract -m "not host" $(ON_ALL_CORES) $(ARGS)

test-bench: $(STAMP_DEV)  ## What benchmarks compute and draw; the benchmarks themselves are make bench-... (half a minute)
	$(PYTEST) tests/bench/tests -m "not host" $(ON_ALL_CORES) $(ARGS)

test-deep: $(STAMP_DEV)  ## The property tests among them with ten times as many examples (ARGS=tests/unit/policy: only these)
	$(BIN)/python -m pytest -m "hypothesis and not host" --hypothesis-profile deep --numprocesses auto $(or $(ARGS),$(ANYWHERE))

test-host: $(STAMP_DEV)  ## As root: control groups, Docker, namespaces, whole systems, compose, emulated machines, part by part (half an hour or more; ROOM=agent, CHANGED=main: only these; ARGS=--list)
	@$(BIN)/python -m scripts.run_host_parts $(ROOM:%=--room %) $(CHANGED:%=--changed %) $(ARGS)

soak-host: $(STAMP_DEV)  ## The same again and again, to count how often each test fails (ARGS="--hours 2 --room agent")
	@$(BIN)/python -m scripts.soak_host $(ARGS)

test-vm: $(STAMP_DEV)  ## Of test-host, what runs in machines (User-Mode Linux, QEMU): control groups of version 2, tc rules, swap, soft-RoCE (15 minutes)
	$(BIN)/python -m pytest tests/lab -m vm $(ARGS)

flaky: $(STAMP_DEV)  ## How often each test of the files that differ from main fails in 20 runs (ARGS="tests/unit/x.py")
	$(BIN)/python -m scripts.flaky $(ARGS)

vm-shell: $(STAMP_DEV)  ## A shell as root in such a machine; leave it with exit, or Ctrl-A X if it hangs
	@$(BIN)/python -m tests.lab.vm.shell

lint: $(STAMP_DEV)  ## Style: ruff check and ruff format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP_DEV)  ## mypy --strict
	$(BIN)/mypy

contracts: $(STAMP_DEV)  ## Import rules of pyproject.toml; words, purity and subjects as the syntax trees have them
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -q $(SOURCE_RULES)

fresh: $(STAMP_DEV)  ## Schema snapshots and generated files are as the code would write them
	$(BIN)/python -m pytest -q $(FRESH)

house: $(STAMP_DEV)  ## Structure in figures: rooms, floors, cycles; fails where a limit does not hold
	@$(BIN)/python -m scripts.house

bench-tick: $(STAMP_DEV)  ## Files, functions and calls that one 100 ms period passes (a quarter of a minute)
	@$(BIN)/python -m tests.bench.tick

format: $(STAMP_DEV)  ## Apply the formatter and the safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP_DEV)  ## Write what is generated: users of the bus, docs/asyncapi.*, settings.md, tables in READMEs and docs, compose/, figures, dashboards, Helm chart
	$(BIN)/python -m scripts.generate_roles
	$(BIN)/python -m scripts.generate_services
	$(BIN)/python -m scripts.generate_docs
	$(BIN)/python -m scripts.generate_figures
	$(BIN)/python -m scripts.generate_dashboards
	$(BIN)/python -m scripts.generate_chart

asyncapi-page:  ## Build docs/asyncapi.html anew (needs node)
	@scripts/asyncapi/build_page.sh

console:  ## Build the console's page anew (needs node): services/console/static
	scripts/build_console.sh

snapshots: $(STAMP_DEV)  ## Write the schema snapshots; refuses a breaking change (ARGS=--allow-breaking)
	$(BIN)/python -m scripts.schema_snapshots $(ARGS)

bench-scale: $(STAMP_DEV)  ## CPU, memory and bytes per container from 10 to 10,000 and more of them (12 minutes; --quick: 1; --polls: usage readings between samples)
	$(BIN)/python -m tests.bench.scale $(ARGS)

bench-flood: $(STAMP_DEV)  ## Decisions for one host's applications while another host's key floods the bus (2 minutes; ARGS="--apps 200")
	$(BIN)/python -m tests.bench.flood $(ARGS)

bench-latency: $(STAMP_DEV)  ## From a sample to the quota in the kernel, by scheduling (5 minutes; --quick: half a one)
	$(BIN)/python -m tests.bench.latency $(ARGS)

bench-reaction: $(STAMP_DEV)  ## How long a container that wakes up waits for CPU, by the way the agent watches (9 minutes; --quick: 2)
	$(BIN)/python -m tests.bench.reaction $(ARGS)

bench-floor: $(STAMP_DEV)  ## What a wake-up costs over NATS before anything is done in it (half a minute)
	$(BIN)/python -m tests.bench.floor $(ARGS)

bench-loop: $(STAMP_DEV)  ## The loop beside the naive way, and its policies beside each other (5 minutes; --quick: 1)
	$(BIN)/python -m tests.bench.loop $(ARGS)

bench-escra: $(STAMP_DEV)  ## Our allocation beside no limits, static ones, Autopilot, VPA and Captain, on real servers (90 minutes)
	$(BIN)/python -m tests.bench.escra.image.build
	$(BIN)/python -m tests.bench.escra.run $(ARGS)

bench-escra-quick: $(STAMP_DEV)  ## The same with one application and one load (5 minutes, after the image)
	$(BIN)/python -m tests.bench.escra.image.build
	$(BIN)/python -m tests.bench.escra.run --quick $(ARGS)

bench-memory: $(STAMP_DEV)  ## Containers that outgrow their memory limit as fast as they can (about 40 minutes; --quick: 2; --idle SECONDS: after so long)
	$(BIN)/python -m tests.bench.memory $(ARGS)

bench-thorn: $(STAMP_DEV)  ## Outages of the dual-ToR lab, with and without BFD and fast path (about 75 minutes; --quick: 3)
	$(BIN)/python -m tests.bench.thorn $(ARGS)

bench-thorn-rules: $(STAMP_DEV)  ## Cost of 1 to 10,000 tc rules beside tc and pyroute2, in an emulated machine (3 minutes)
	$(BIN)/python -m tests.bench.thorn_rules_vm $(ARGS)

bench-thorn-storm: $(STAMP_DEV)  ## What a storm of edge faults costs per fault, and what is left of it (10 minutes; ARGS="--minutes 2")
	$(BIN)/python -m tests.bench.thorn_storm $(ARGS)

bench-thorn-job: $(STAMP_DEV)  ## A distributed training job under edge faults, and restarted instead (about 25 minutes; --quick: 6)
	$(BIN)/python -m tests.bench.thorn_job $(ARGS)

bench-advisor: $(STAMP_DEV)  ## Predictions and choices of the advisor's models on left-out applications (hours; --quick: minutes); --local-runs: ten local runs, cut (15 minutes, root)
	$(BIN)/python -m tests.bench.advisor $(ARGS)

bench-scheduler: $(STAMP_DEV)  ## Policies for training jobs on three traces, by simulation (5 minutes; --quick: half a one; --scale); --elastic: with and without elastic jobs; --live: real processes beside it (10 minutes); --live --slurm: in Slurm (12 minutes)
	$(BIN)/python -m tests.bench.scheduler $(ARGS)

bench-interleave: $(STAMP_DEV)  ## Jobs that share an uplink: reno, cubic, bbr, Cassini, MLTCP, alone (75 minutes; --quick: 10; --bulk; --change-batch)
	$(BIN)/python -m tests.bench.interleave.run $(ARGS)

bench-planner: $(STAMP_DEV)  ## How long dividing a job over unequal devices takes (half a minute)
	$(BIN)/python -m tests.bench.planner_times $(ARGS)

bench-remote-memory: $(STAMP_DEV)  ## Remote memory: placement on 32 daemons, simulated; what a page costs the daemon; swap beside a slow disk, on a kernel in a machine (5 minutes; --quick)
	$(BIN)/python -m tests.bench.remote_memory $(ARGS)

bench-trainer: $(STAMP_DEV)  ## The trainer's layered engine beside FSDP2, step by step on two processes (2 minutes)
	$(BIN)/python -m tests.bench.trainer $(ARGS)

bench-gpu: $(STAMP_DEV)  ## On one GPU: the trainer's layered engine beside FSDP2, and plans beside what ranks take (3 minutes)
	$(BIN)/python -m tests.bench.trainer_gpu $(ARGS)

bench-elastic: $(STAMP_DEV)  ## Pauses of changes of workers, samples per dollar of an elastic job, hybrid plans (root; --quick; --only pauses: 2 minutes)
	$(BIN)/python -m tests.bench.elastic.run $(ARGS)

bench-unequal: $(STAMP_DEV)  ## A training job on unequal sandboxes: split evenly, by speed, by us; predictions beside it (root, 20 minutes; --quick: 4)
	$(BIN)/python -m tests.bench.unequal.run $(ARGS)

bench-pipelines: $(STAMP_DEV)  ## A pipeline over a slow link: engine ministage beside FSDP2 over all and torch's schedules (root, 10 minutes; --quick: 3)
	$(BIN)/python -m tests.bench.pipelines.run $(ARGS)

bench-aggregation: $(STAMP_DEV)  ## Shared aggregation beside an aggregator for each of 4 and 8 jobs; a trace by simulation (25 minutes; --quick: 4)
	$(BIN)/python -m tests.bench.aggregation.run $(ARGS)

bench-runtimes: $(STAMP_DEV)  ## What Java and Go programs see of limits that move (10 minutes, needs a JDK and Go; --quick: 2)
	$(BIN)/python -m tests.bench.runtimes.run $(ARGS)

bench-console: $(STAMP_DEV)  ## What the web console and its page cost with 500 containers, in headless Chromium (4 minutes)
	$(BIN)/python -m tests.bench.console $(ARGS)

fuzz: $(STAMP_DEV)  ## A million spoiled messages for every decoder (1 minute; ARGS="--seed 7 --count 20000")
	$(BIN)/python -m tests.fuzz.message_fuzzer $(ARGS)

fuzz-plans: $(STAMP_DEV)  ## A hundred thousand random jobs planned: every plan fits (20 minutes; ARGS="--seed 7 --count 1000")
	$(BIN)/python -m tests.fuzz.random_plans $(ARGS)

fuzz-plan-files: $(STAMP_DEV)  ## A hundred thousand spoiled cluster.yaml and plan.json files each (10 minutes; ARGS as above)
	$(BIN)/python -m tests.fuzz.plan_files $(ARGS)

soak: $(STAMP_DEV)  ## Random crashes and freezes of everything under load (10 minutes; ARGS="--seed 7 --seconds 60")
	$(BIN)/python -m tests.soak.soak $(ARGS)

soak-jobs: $(STAMP_DEV)  ## The same for training jobs: schedulers, runners, agent, allocator, server (10 minutes; ARGS as above)
	$(BIN)/python -m tests.soak.jobs $(ARGS)

soak-swap: $(STAMP_DEV)  ## The same for swap to remote memory, on a kernel in a machine (20 seeds, 80 minutes; ARGS="--seed 7 --count 1")
	$(BIN)/python -m tests.soak.swap $(ARGS)

images:  ## Container images (ARGS="agent allocator": only these; KIND=1, K3S=1: then into the nodes of kind, this machine's k3s)
	scripts/make_images.sh $(ARGS)
	@$(LOAD)

images-offline: $(STAMP_RUN)  ## The same without a registry, as root on Debian
	scripts/make_images_offline.sh $(ARGS)
	@$(LOAD)

clean:  ## Remove .venv, caches and build results
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP_RUN): $(INSTALL_INPUTS)
	@scripts/make_venv.sh agent,allocator,reconciler,cli
	@touch $@

$(STAMP_DEV): $(INSTALL_INPUTS)
	@scripts/make_venv.sh dev
	@touch $(STAMP_RUN) $@
