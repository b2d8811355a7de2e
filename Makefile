# Two commands do all the set-up: `make demo` and `make test`.
# PYTHON names the interpreter to build the environment with (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-long lint types unit faults predictions docs install clean

# how many threads are fastest here is found out by timing a step; OMP_NUM_THREADS=2 make demo says it beforehand
demo: install
	$(BIN)/frugan demo

test: lint types unit

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

# two processes of one thread each: the tests are many and small; a file's tests stay together, as they share runs. The
# simulated card has processes of its own: torch takes a new device only before the first backward pass of a process.
# Bytecode is kept even where Python is told not to: each of the processes that tests start would compile everything
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile
unit: install
	$(PYTEST)
	$(PYTEST) tests/simulated_card

# PART=3/8 does one part of eight. What passed at this very commit is not run again, so that what was interrupted goes on
IN_PART := $(if $(PART),--part $(PART))

# everything, also what takes minutes: not needed for a change, but before a release
test-long: lint types
	PYTHONDONTWRITEBYTECODE= $(BIN)/python tests/whole.py $(IN_PART)

# puts one fault after the other into a copy of the code: tests that are never seen to fail prove nothing
faults: install
	OMP_NUM_THREADS=1 $(BIN)/python tests/deliberate_faults.py $(IN_PART)

# what ships of every recipe's plans, made anew where VERSION in planning/predictions.py was raised, and held to the oldest
# torch and the newest, in environments that need 6 GB each: hours on two shared cores, and the package index
TWINS ?= build/twins
predictions: install
	$(BIN)/python benchmarks/what_fits.py
	$(BIN)/python benchmarks/what_fits.py --fp32
	$(BIN)/python benchmarks/card_twin.py $(TWINS) --predictions

# the docs as a site, in build/site: open build/site/index.html
docs: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/zensical build --config-file mkdocs.yml --strict
	@echo "The docs as a site: $(CURDIR)/build/site/index.html"

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "An environment in $(VENV) is made, once: 2 to 7 GB, most of it PyTorch. It takes minutes, as long as the download does."
	$(PYTHON) -m venv $(VENV)
	@echo "1 of 2: PyTorch and what it needs"
	$(BIN)/python -m pip install --constraint constraints.txt torch
	@echo "2 of 2: frugan and its tools"
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
