.DEFAULT_GOAL := run
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check

.PHONY: help try run run-examples matrix setup test test-cluster test-all test-long mutants lint docs site pictures envs zoo bench check-gpu cluster-up cluster-down cluster-shell \
  clean distclean

# List what can be made.
help:
	@awk '/^# / {text = text ? text : substr($$0, 3); next} /^[a-z-]+:/ && text {split($$0, name, ":"); printf "make %-14s %s\n", name[1], text} {text = ""}' \
	  $(firstword $(MAKEFILE_LIST))

# -P: a file of the folder that has the name of a Python module (random.py) is not taken for that.
SNAKEMAKE := $(BIN)/python -P -m snakemake
# Try it in a minute: one workload on one device and with DDP.
try: .venv/run
	@$(SNAKEMAKE) --profile workflow/profiles/local --config 'workloads=[mlp]' 'strategies=[single, ddp]' -- all

# Train and compare the default matrix on the embedded data.
# Ends with its test losses, the verdict and the report to open.
run: .venv/run
	@$(SNAKEMAKE) --profile workflow/profiles/local all

EXAMPLES = $(shell sed -n 's/^\(example_[a-z_]*\):.*/\1/p' config/strategies.yaml | paste -sd,)
# Train the scripts of examples/, and judge them.
run-examples: .venv/run
	@$(SNAKEMAKE) --profile workflow/profiles/local --config 'strategies=[single,$(EXAMPLES)]' \
	  'workloads=[mlp,mnist,llama2,moe]' -- all

# The default workloads; adapters on packed rows and beside experts; and Muon.
COLUMNS := "mlp", "mnist", "xsum", "vit", "llama2", "moe", "hf_small", "instruct@size=lora", "moe@size=lora", "moe@optimizer.name=muon"
# Compare every strategy on every workload with one device.
# Writes the figures of the documents, and their pictures.
matrix: .venv/run
	$(SNAKEMAKE) --profile workflow/profiles/local --config 'strategies=[all]' 'workloads=[$(COLUMNS)]' -- all
	$(BIN)/python scripts/shardlab summarize --config '{"strategies": ["all"], "workloads": [$(COLUMNS)]}' --check
	$(BIN)/python scripts/docs.py --summary results/summary.csv
	$(BIN)/python docs/pictures.py
	$(BIN)/python docs/techniques.py

# Install what a login node needs: all but PyTorch.
setup: .venv/login

# Two processes, of which each takes whole files; most tests wait for others much of the time.
PYTEST := $(BIN)/python -m pytest --numprocesses=2 --no-loadscope-reorder
# Test all that needs no cluster; changes this folder alone.
test: .venv/dev
	$(PYTEST) tests/workflow tests/parity tests/unit tests/traindiff

# Test on a cluster in a box: needs root and Debian.
# Says first what it installs.
test-cluster: .venv/dev
	$(PYTHON) tests/cluster/cluster.py prepare
	$(BIN)/python -m pytest tests/cluster

# Run both.
test-all: .venv/dev
	$(PYTHON) tests/cluster/cluster.py prepare
	$(PYTEST)

# Run both, and the tests marked long: before a release.
test-long: .venv/dev
	$(PYTHON) tests/cluster/cluster.py prepare
	$(PYTEST) --long

# Put faults into copies of the code: which test catches each.
mutants: .venv/dev
	$(BIN)/python tests/mutants

# Run ruff, codespell, snakefmt, mypy and snakemake --lint.
# Checks also that generated files are up to date.
lint: .venv/dev
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	git ls-files -z --cached --others --exclude-standard | xargs -0 $(BIN)/codespell
	$(BIN)/python -m snakefmt --check Snakefile workflow
	$(BIN)/python -m mypy scripts benchmarks
	$(SNAKEMAKE) --lint
	$(BIN)/python scripts/docs.py --check

# Generate tables of the documents.
# The figures of docs/results.md: make matrix.
docs: .venv/dev
	$(BIN)/python scripts/docs.py

# Make the documents a site in site/, and check its links.
site: .venv/dev
	rm -rf .site && mkdir .site && git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --no-dereference -t .site
	$(BIN)/python -m mkdocs build --strict

# Draw the README's picture from results/summary.csv.
pictures: .venv/run
	$(BIN)/python docs/pictures.py

# Check one to eight GPUs of this machine.
# Every strategy over NCCL is compared with one GPU, and that with a CPU.
check-gpu: .venv/dev
	$(BIN)/python benchmarks/check_gpu.py

# Each is compiled within the ones before it, so that all fit into one environment.
# A local build's tag (torch 2.13.0+cpu) is dropped: the host's pip settings choose the build.
COMPILE := ../$(BIN)/python -m piptools compile --quiet --strip-extras --no-header --no-emit-index-url --no-emit-find-links --annotation-style=line
# Pin the lock files, from envs/*.in.
envs: .venv/dev
	cd envs && $(COMPILE) -o workflow.txt workflow.in
	cd envs && $(COMPILE) -c workflow.txt -o train.txt train.in && sed -i 's/+cpu//' train.txt
	cd envs && $(COMPILE) -c workflow.txt -c train.txt -o dev.txt dev.in && sed -i 's/+cpu//' dev.txt
	cd envs && $(COMPILE) -c workflow.txt -c train.txt -o peers.txt peers.in && sed -i 's/+cpu//' peers.txt

# Prove strategies on every decoder type of transformers.
# Each made tiny, against one process, in float64; writes docs/evidence.md.
zoo: .venv/dev
	$(BIN)/python benchmarks/zoo.py

# Measure steps beside those of bare PyTorch loops.
bench: .venv/dev
	$(BIN)/python benchmarks/peers.py

NODES ?= 2
GPUS ?= 4
# Start a Slurm cluster in a box: NODES, GPUS.
# On a Debian machine, as root; the GPUs, per node, are fake.
cluster-up:
	$(PYTHON) tests/cluster/cluster.py up --nodes $(NODES) --gpus $(GPUS)

# Stop it; nothing of it is left running.
cluster-down:
	$(PYTHON) tests/cluster/cluster.py down

# Open a shell of its ordinary user.
cluster-shell:
	$(PYTHON) tests/cluster/cluster.py shell

# Remove caches; never results, downloads or the environment.
clean:
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -r {} +
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Remove all that git ignores, also results; asks first.
distclean:
	@git clean -ndX | sed 's/^Would remove/ /'
	@printf 'Remove all of this? Type yes: '; read answer && [ "$$answer" = yes ] || { echo 'error: nothing was removed.' >&2; exit 1; }
	git clean -fdXq

.venv/bin/python:
	@$(PYTHON) scripts/check_python.py
	@$(PYTHON) -m venv .venv

.venv/login: envs/workflow.txt pyproject.toml | .venv/bin/python
	$(INSTALL) -r envs/workflow.txt
# The command; an environment that several clones share (a link) keeps that of the first.
	@test -L .venv || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

.venv/run: envs/train.txt .venv/login
	$(INSTALL) -r envs/workflow.txt -r envs/train.txt
	@touch $@

.venv/dev: envs/dev.txt .venv/run
	$(INSTALL) -r envs/dev.txt
	@touch $@
