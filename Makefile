# Everything a person or CI does with this repository. The first target sets up what the rest need.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
# PyTorch is pinned: later wheels for Linux bring gigabytes of CUDA that no test needs.
EXTRAS = atari,methods,mujoco,parquet,ray,sb3,torch,video,web

.PHONY: demo test test-slow bench bench-quick reproduce lint format clean

$(VENV)/.core: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[atari,web]"
	touch $@

$(STAMP): $(VENV)/.core
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]" --group dev
	touch $@

demo: $(VENV)/.core  ## a small study of the bundled agent: margins and pictures
	$(BIN)/safemargin demo

test: $(STAMP)  ## all tests; the statistical ones in a reduced form
	$(BIN)/python -m pytest -n auto --dist loadfile

test-slow: $(STAMP)  ## the statistical truths, whole
	SAFEMARGIN_SLOW=1 $(BIN)/python -m pytest tests/slow

bench: $(STAMP)  ## every speed claim: both sides in one run, about half an hour on 2 quiet cores
	$(BIN)/python benchmarks/bench_rollouts.py
	$(BIN)/python benchmarks/bench_growth.py
	$(BIN)/python benchmarks/bench_monitor.py
	$(BIN)/python benchmarks/bench_fleet.py

bench-quick: $(STAMP)  ## a reduced round in under two minutes, which writes no file
	$(BIN)/python benchmarks/bench_rollouts.py --quick

reproduce: $(STAMP)  ## the paper's tables and figures beside ours, from stored studies
	$(BIN)/python reproduction/build.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) runs/demo
