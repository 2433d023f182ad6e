.DEFAULT_GOAL := run
PYTHON ?= python3
BIN := .venv/bin
INSTALL := @$(BIN)/python scripts/install.py
packages = $(words $(shell sed '/^\#/d; s/ .*//' $(1)))

.PHONY: help run matrix watch setup test test-cluster test-all mutants lint docs site pictures envs bench check-gpu cluster-up cluster-down cluster-shell \
  clean distclean

# What can be made.
help:
	@awk '/^# /{text=substr($$0,3)} /^[a-z-]+:/{split($$0,name,":"); if (text) printf "make %-14s %s\n", name[1], text; text=""}' $(firstword $(MAKEFILE_LIST))

# The default matrix on the embedded data; ends with its test losses, the verdict and the report to open.
run: .venv/run
	@$(BIN)/python -m snakemake --profile workflow/profiles/local all
	@echo && cat results/logs/summarize.log

EVERY := --config 'strategies=[all]'
# Every strategy on every workload, each held to one device; writes the matrix of docs/matrix.md.
matrix: .venv/run
	$(BIN)/python -m snakemake --profile workflow/profiles/local $(EVERY) -- all
	$(BIN)/python scripts/summarize.py --config '{"strategies": ["all"]}' --check
	$(BIN)/python scripts/docs.py --summary results/summary.csv

# What each run does now, until q.
watch: .venv/login
	$(BIN)/python scripts/watch.py

# For a login node: Snakemake and the data stages; PyTorch is in the image.
setup: .venv/login

# Two processes, of which each takes whole files; most tests wait for others much of the time.
PYTEST := $(BIN)/python -m pytest --numprocesses=2 --no-loadscope-reorder
# What changes nothing outside of this folder, as any user.
test: .venv/dev
	$(PYTEST) tests/unit tests/parity tests/workflow

# On a cluster in a box: needs root and Debian, and says first what it installs.
test-cluster: .venv/dev
	$(PYTHON) tests/cluster/cluster.py prepare
	$(BIN)/python -m pytest tests/cluster

# Both, and the tests marked long.
test-all: .venv/dev
	$(PYTHON) tests/cluster/cluster.py prepare
	$(PYTEST) --long

# Faults put into a copy of the code, one at a time: which test catches each.
mutants: .venv/dev
	$(BIN)/python tests/mutants

# ruff, snakefmt, mypy, snakemake --lint, and that generated files are up to date.
lint: .venv/dev
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m snakefmt --check Snakefile workflow
	$(BIN)/python -m mypy scripts benchmarks
	$(BIN)/python -m snakemake --lint
	$(BIN)/python scripts/docs.py --check

# What is generated: schemas, tables of config/README.md and docs/matrix.md (its figures: make matrix).
docs: .venv/dev
	$(BIN)/python scripts/docs.py

# The documents as a site in site/, every link of it checked; they read as plain files, too.
site: .venv/dev
	rm -rf .site && mkdir .site && git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --no-dereference -t .site
	$(BIN)/python -m mkdocs build --strict

# The pictures of the README, from the report that is there (make matrix), in Debian's Chromium.
pictures: .venv/dev
	$(BIN)/python docs/pictures.py

# On a machine with one to eight GPUs: every strategy over NCCL against one GPU, that against a CPU, large models' speed.
check-gpu: .venv/dev
	$(BIN)/python benchmarks/check_gpu.py

# Each but the last (of one test) is compiled within the ones before it, so that all fit into one environment.
# A local build's tag (torch 2.13.0+cpu) is dropped: the host's pip settings choose the build.
COMPILE := ../$(BIN)/python -m piptools compile --quiet --strip-extras --no-header --no-emit-index-url --no-emit-find-links --annotation-style=line
# The lock files, from envs/*.in.
envs: .venv/dev
	cd envs && $(COMPILE) -o workflow.txt workflow.in
	cd envs && $(COMPILE) -c workflow.txt -o train.txt train.in && sed -i 's/+cpu//' train.txt
	cd envs && $(COMPILE) -c workflow.txt -c train.txt -o dev.txt dev.in
	cd envs && $(COMPILE) -o validator.txt validator.in
	cd envs && $(COMPILE) -c workflow.txt -c train.txt -o peers.txt peers.in && sed -i 's/+cpu//' peers.txt

KILLS ?= 1000
SEED ?= 1
# Trainings killed at random: KILLS of them, by SEED.
soak: .venv/dev
	$(BIN)/python benchmarks/soak.py --kills $(KILLS) --seed $(SEED)

# Compared with other trainers, also by hand on two ranks; plans, starting ranks, checkpoints, 1 to 8 ranks, sweeps of up
# to 10,000 runs, the workflow compared with a shell script and with an earlier commit, the driver's CPU time.
# The tables of docs/performance.md, on this machine, in some 45 minutes.
bench: .venv/peers/made
	.venv/peers/bin/python benchmarks/peers.py
	.venv/peers/bin/python benchmarks/peers.py --strategies ddp fsdp zero2 --sizes middle --rounds 60 --repeats 0 --output results/benchmarks/ranks
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/starting.py
	$(BIN)/python benchmarks/checkpoints.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/sweeps.py
	$(BIN)/python benchmarks/workflow.py
	$(BIN)/python benchmarks/driver.py
	$(BIN)/python benchmarks/earlier.py --rounds 1

NODES ?= 2
GPUS ?= 4
# A Slurm cluster in a box, on a Debian machine, as root: NODES, GPUS (fake ones per node).
cluster-up:
	$(PYTHON) tests/cluster/cluster.py up --nodes $(NODES) --gpus $(GPUS)

# Nothing of it is left running.
cluster-down:
	$(PYTHON) tests/cluster/cluster.py down

# A shell of its ordinary user.
cluster-shell:
	$(PYTHON) tests/cluster/cluster.py shell

# What is made again in seconds; never results, downloads or the environment.
clean:
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -r {} +
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Everything that git ignores: results, data, images, environment. Asks first.
distclean:
	@git clean -ndX | sed 's/^Would remove/ /'
	@printf 'Remove all of this? Type yes: '; read answer && [ "$$answer" = yes ] || { echo 'error: nothing was removed.' >&2; exit 1; }
	git clean -fdXq

.venv/bin/python:
	@$(PYTHON) scripts/check_python.py
	@$(PYTHON) -m venv .venv

.venv/login: envs/workflow.txt | .venv/bin/python
	@echo 'Installing Snakemake, the data stages and the report: $(call packages,envs/workflow.txt) packages.'
	$(INSTALL) envs/workflow.txt
	@touch $@

.venv/run: envs/train.txt .venv/login
	@echo 'Installing PyTorch, DeepSpeed and what they need: $(call packages,envs/train.txt) packages, the largest by far.'
	$(INSTALL) envs/workflow.txt envs/train.txt
	@touch $@

# Other trainers, to be measured beside: on top of what is there, in an environment of their own.
.venv/peers/made: envs/peers.txt .venv/run
	@echo 'Installing the trainers that ours is measured beside: up to $(call packages,envs/peers.txt) packages.'
	$(BIN)/python -m venv .venv/peers
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > $$(.venv/peers/bin/python -c 'import site; print(site.getsitepackages()[0])')/below.pth
	@.venv/peers/bin/python scripts/install.py envs/peers.txt
	@touch $@

.venv/dev: envs/dev.txt .venv/run
	@echo 'Installing what tests, lint and documents need: $(call packages,envs/dev.txt) packages.'
	$(INSTALL) envs/dev.txt
	@touch $@
