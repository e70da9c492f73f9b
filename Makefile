# `make train` and `make test` are all a newcomer needs; both set the environment up first.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORLDS := $(VENV)/.box2d $(VENV)/.mujoco
WORKERS ?= 2

.PHONY: train test lint verify chaos bench clean help

help:
	@echo "make train   train PPO on CartPole and show the curve"
	@echo "make test    run the tests"
	@echo "make lint    ruff and mypy"
	@echo "make verify  scores over several seeds, against published ones (writes docs/scores.md)"
	@echo "make chaos   kill runs at random moments and compare them with runs never stopped; all other long tests, too"
	@echo "make bench   speed against peers in the same run (writes docs/speed.md)"

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "shoal needs Python 3.11 or newer: make PYTHON=python3.12 …"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	@touch $(READY)

train: $(READY)
	$(BIN)/shoal train ppo cartpole --seed 1

# Compiled with less effort, as bits and speed allow: level 1 has the bits of users' programs and takes a fifth less, level 0 half as long.
# So the first is for tests that compare bits, the second for all others; verify, chaos and bench compile as users do.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow"
BITS := $(addprefix tests/,chaos equivalence main_loop store buffers) $(wildcard tests/test_*.py) $(addprefix tests/algos/test_,team.py \
	dqn_threads.py sac_threads.py)

test: $(READY) lint
	XLA_FLAGS=--xla_backend_optimization_level=1 $(PYTEST) $(BITS)
	XLA_FLAGS=--xla_backend_optimization_level=0 $(PYTEST) tests $(addprefix --ignore=,$(BITS))

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy

# without them `verify` leaves out what needs them, and says so
$(WORLDS): $(VENV)/.%: $(READY)
	-$(BIN)/python -m pip install --quiet -e ".[$*]" && touch $@

verify: $(WORLDS)
	$(BIN)/python -m benchmarks.verify $(PART)

chaos: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) -m slow tests $(ARGS)

bench: $(READY)
	$(BIN)/python -m benchmarks.bench $(PART)

clean:
	rm -rf $(VENV) build dist *.egg-info
