# Everything a person or CI does with this repository. The first target sets up what the rest need.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
# PyTorch is pinned: later wheels for Linux bring gigabytes of CUDA that no test needs.
EXTRAS = atari,jax,methods,minari,mujoco,parquet,pgx,ray,rl-zoo,sb3,torch,video,web

.PHONY: demo test test-slow test-adapters test-worlds docs links dist try-dist extras lock bench bench-quick reproduce lint format clean

$(VENV)/.core: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[demo]"
	touch $@

$(STAMP): $(VENV)/.core
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]" --group dev
	rm -rf $(VENV)/lib/python3*/site-packages/tests  # pgx brings its own, which hide these from workers
	touch $@

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

demo: $(VENV)/.core  ## a small study of the bundled agent: margins, pictures and a report
	$(BIN)/safemargin demo

# One thread each for NumPy and PyTorch: with tests on every core, more of them wait for one another.
# Compiled modules are kept, whatever the shell says: hundreds of short processes share them.
test: $(STAMP)  ## all tests; the statistical ones in a reduced form
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-slow: $(STAMP)  ## the statistical truths, whole
	SAFEMARGIN_SLOW=1 $(BIN)/python -m pytest tests/slow tests/environments/test_environment_contract.py

# Libraries that cannot live together, or not beside the rest: each in an environment of its own.
ADAPTERS = rllib sbx cleanrl tianshou torchrl skrl rl-zoo
MATRIX = $(abspath build)/matrix.jsonl

test-adapters: $(ADAPTERS:%=adapter-%)  ## every library's own agents, and the matrix of what works
	$(PYTHON) docs/matrix.py $(MATRIX)

adapter-%: pyproject.toml
	$(PYTHON) -m venv $(VENV)-adapters/$*
	$(VENV)-adapters/$*/bin/python -m pip install --quiet torch==2.13.0
	$(VENV)-adapters/$*/bin/python -m pip install --quiet --editable ".[atari,$*]" \
		hypothesis onnx pytest $(if $(filter rl-zoo,$*),rl_zoo3 mujoco imageio minigrid)
	mkdir -p build
	SAFEMARGIN_MATRIX=$(MATRIX) $(VENV)-adapters/$*/bin/python -m pytest \
		tests/adapters/test_$(subst -,_,$*).py
	$(VENV)-adapters/$*/bin/python benchmarks/bench_adapters.py $(MATRIX)

games = ".[atari,mujoco]" minigrid "pettingzoo[butterfly,classic]" highway-env "gymnasium[box2d]"
robots = "." metaworld gymnasium-robotics
WORLDS = $(abspath build)/worlds.jsonl

test-worlds: worlds-games worlds-robots  ## every world's restored runs, and the matrix of them
	$(PYTHON) docs/matrix.py $(WORLDS)

# Meta-World asks for a MuJoCo that cannot copy a simulation; Gymnasium-Robotics fails with later ones.
worlds-%: pyproject.toml
	$(PYTHON) -m venv $(VENV)-adapters/$*
	$(VENV)-adapters/$*/bin/python -m pip install --quiet hypothesis pytest --editable $($*)
	$(if $(filter robots,$*),$(VENV)-adapters/$*/bin/python -m pip install --no-deps mujoco==3.5.0)
	mkdir -p build
	SAFEMARGIN_SLOW=1 SAFEMARGIN_WORLDS=$(WORLDS) $(VENV)-adapters/$*/bin/python -m pytest \
		tests/environments/test_environment_contract.py \
		-k "restored and $(if $(filter robots,$*),,not) (robotics or meta_world)"

docs: $(VENV)/.docs  ## the site, in docs/_build/html, a warning is an error; and every block of code
	$(BIN)/sphinx-build --fail-on-warning --keep-going --jobs auto --quiet docs docs/_build/html
	SAFEMARGIN_SLOW=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal \
		tests/test_code_blocks.py tests/test_tutorials.py
	@echo "docs/_build/html/index.html"

links: $(VENV)/.docs  ## asks every other site that the pages link to; needs the whole network
	$(BIN)/sphinx-build -b linkcheck -t quick --quiet docs build/links

dist: $(STAMP)  ## wheel and sdist, checked; the wheel's own files must do without this repository
	rm -rf dist build
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m pip install --quiet --no-deps --target build/wheel dist/*.whl
	cd build/wheel && $(abspath $(BIN))/python -m safemargin margin \
		$(abspath tests/data/cartpole-margins.json) --proxy 1 --tolerance 1
	cd build/wheel && $(abspath $(BIN))/python -m safemargin zoo

try-dist: dist  ## as a new user: an empty environment, an empty folder, the demonstration
	$(PYTHON) -m venv --clear build/fresh
	build/fresh/bin/python -m pip install --quiet "$$(ls dist/*.whl)[demo]"
	mkdir -p build/empty
	cd build/empty && ../fresh/bin/safemargin demo --no-browser

extras: $(STAMP)  ## every extra resolves alone, to wheels, on every Python that is supported
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/python .ci/extras.py

lock: $(STAMP) $(VENV)/.docs  ## the versions in use here, for PIP_CONSTRAINT=constraints.txt make test
	( echo "# Made by make lock, with $$($(BIN)/python --version) on $$(uname -sm)." && \
	  $(BIN)/python -m pip freeze --exclude-editable | sed -e '/ @ /d' -e 's/+cpu$$//' ) > constraints.txt

bench: $(STAMP)  ## every speed claim: both sides in one run, about half an hour on 2 quiet cores
	$(BIN)/python benchmarks/bench_rollouts.py
	$(BIN)/python benchmarks/bench_growth.py
	$(BIN)/python benchmarks/bench_monitor.py
	$(BIN)/python benchmarks/bench_learned.py
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
	rm -rf $(VENV) $(VENV)-adapters runs/demo build dist docs/_build docs/generated
