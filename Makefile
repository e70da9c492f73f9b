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

# Compiled with less effort than users' programs, with the same bits (level 1): a fifth less time. Tests that compare no bits of one program
# with another's, but scores, numbers and words, with the least effort (level 0): half the time. verify, chaos and bench compile as users do.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow"
QUICK := $(addprefix tests/,cli config corpora docs monitor probes style $(patsubst %,algos/test_%.py,correction dqn dqn_linear policy_gradients ppo \
	recurrent sac td3))

test: $(READY) lint
	XLA_FLAGS=--xla_backend_optimization_level=1 $(PYTEST) tests $(addprefix --ignore=,$(QUICK))
	XLA_FLAGS=--xla_backend_optimization_level=0 $(PYTEST) $(QUICK)

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
