# Every target builds what it needs in .venv, in a fresh clone too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test thorough fuzz check docs format bench quality clean
.DEFAULT_GOAL := demo

demo: $(VENV)/base.stamp  ## simulate a graph on four devices and draw the timeline
	$(BIN)/dop demo

# Bytecode is written, whatever the environment says: tests start many processes. Kernels are
# compiled here, once: each worker of pytest would compile them again.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/dev.stamp  ## run the tests
	$(BIN)/python -c "import doppler.placers.warm_up as w; w.warm_up(); w.warm_up_fixed(); w.warm_up_plans()"
	$(BIN)/python -m pytest -n auto --dist worksteal

thorough: export THOROUGH = 1
thorough: test  ## run the tests, with three times as many random examples

fuzz: export FUZZ_CASES ?= 100000
fuzz: $(VENV)/dev.stamp  ## run `dop` on many more broken and odd files than the tests do
	$(BIN)/python -m pytest -n auto -rP tests/fuzz

check: $(VENV)/dev.stamp  ## lint, formatting, types, architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/docs.stamp  ## build the documentation: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(VENV)/dev.stamp  ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/dev.stamp  ## the simulator against SimPy, the workloads against the paper, the engine
	$(BIN)/python benchmarks/simulator.py run
	$(BIN)/python benchmarks/workloads.py run
	$(BIN)/python benchmarks/engine.py run

quality: $(VENV)/dev.stamp  ## has any method become worse? some minutes
	$(BIN)/python benchmarks/quality.py

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/base.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/dev.stamp: $(VENV)/base.stamp
	$(PIP) -e .[dev,all]
	touch $@

$(VENV)/docs.stamp: $(VENV)/base.stamp
	$(PIP) -e .[docs,torch]
	touch $@
