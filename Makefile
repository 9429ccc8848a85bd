# Every target sets itself up: a virtual environment in .venv with locked packages, nothing else. `make setup` takes
# PYTHON (3.11 or newer), VENV (another place) and TORCH (another build, such as one for your CUDA; any pip arguments).
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
INSTALL = "$(PYTHON)" requirements/install.py --venv "$(VENV)"

.PHONY: setup system worlds browser notebooks demo test test-slow check format docs docs-site bench mutants fuzz wheel lock clean FORCE

setup: $(READY)

# a TORCH from the command line is compared with what is installed
$(READY): pyproject.toml $(wildcard requirements/*.txt requirements/install.py) $(if $(filter command environment,$(origin TORCH)),FORCE)
	@command -v "$(PYTHON)" >/dev/null || { echo "setup: no program \"$(PYTHON)\"; install Python 3.11 or newer (apt-get install python3 python3-venv), or name one: make setup PYTHON=..." >&2; exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  newer=$$(for minor in 13 12 11; do python3.$$minor -c 0 2>/dev/null && echo python3.$$minor && break; done); \
	  echo "setup: Whetstone needs Python 3.11 or newer, $(PYTHON) is $$("$(PYTHON)" -V 2>&1); name another one: make setup PYTHON=$${newer:-/path/of/python3}" >&2; exit 2; }
	@$(INSTALL) --torch "$(TORCH)" dev

# worlds of other packages, whose tests are skipped without them; some are built from C
worlds: $(READY)
	@$(INSTALL) worlds || echo "worlds: reasoning-gym, TextWorld, ScienceWorld, TextArena and Jericho are not installed: their tests are skipped"

# programs that tests use, where this machine lets us install them; tests that need one say so where it is missing
system:
	@command -v bwrap >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && { apt-get install -y -qq bubblewrap || { apt-get update -qq && apt-get install -y -qq bubblewrap; }; } >/dev/null 2>&1; } \
	  || echo "bubblewrap is not installed: the tests of its isolation are skipped"
	@command -v java >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && { apt-get install -y -qq default-jre-headless \
	    || { apt-get update -qq && apt-get install -y -qq default-jre-headless; }; } >/dev/null 2>&1; } \
	  || echo "Java is not installed: the tests of ScienceWorld are skipped"
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && { apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }; } >/dev/null 2>&1; } \
	  || echo "Chromium is not installed: the tests of pages are skipped"

# Playwright, which drives that browser, and axe, which checks pages for accessibility
browser: $(READY)
	@$(INSTALL) browser || echo "browser: Playwright is not installed: the tests of the viewer's pages are skipped"

# Jupyter's client and kernel, with which tests run examples/notebooks
notebooks: $(READY)
	@$(INSTALL) notebooks || echo "notebooks: nbclient is not installed: the tests that run notebooks are skipped"

# trains the recipe `demo` into runs/demo; a run that was stopped goes on, a finished one is shown again
demo: $(READY)
	$(BIN)/whetstone train demo --run-dir runs/demo $(if $(wildcard runs/demo/recipe.yaml),--resume)

# writes nothing outside .venv but bytecode; what is not installed is skipped, with the command that brings it. Three
# processes on two cores: many tests wait. OPTIONS are further options of pytest
OPTIONS ?=
test: $(READY)
	@$(BIN)/python -m compileall -q src || true  # for the processes that tests begin; a checkout may be read-only
	$(BIN)/pytest -m "not slow and not structure" -n 3 --dist worksteal $(OPTIONS)

# the rest: long runs, sweeps, attacks, kills, and properties with all their examples; EXAMPLES=explore tries others.
# OPTIONS=--every=3 tries a third of the parameters of each sweep, EXAMPLES=medium a quarter of the examples, as CI does.
# `make test OPTIONS=--write-skipped=FILE` and then SKIPPED=FILE also run what was skipped before `make system worlds`
EXAMPLES ?= thorough
SKIPPED ?= /dev/null
test-slow: $(READY) system worlds browser notebooks
	@$(BIN)/python -m compileall -q src || true
	$(BIN)/pytest -m "slow or hypothesis or skipped_before" --skipped-before="$(SKIPPED)" \
	  --hypothesis-profile $(EXAMPLES) -n 3 --dist worksteal $(OPTIONS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/make/generate.py --check
	$(BIN)/pytest -m structure tests/repository -n 2

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# the pages of docs/reference/, from the docstrings
docs: $(READY)
	$(BIN)/python docs/make/generate.py

# the same as a site with search, in build/site; a link that leads nowhere ends it
docs-site: docs
	@$(INSTALL) site
	$(BIN)/python docs/make/gather.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# all benchmarks, or one: make bench NAME=engine
NAME ?= engine concurrency rollout learner end_to_end learn asynchronous crash faults checkpoint credit methods branching stability tools environments worlds rewards evaluation
bench: $(READY)
	@$(INSTALL) bench
	set -e; for name in $(NAME); do $(BIN)/python -m benchmarks $$name; done

# changes of algorithms/ and rewards/ that no test notices: all (hours), or one in so many: make mutants EVERY=8
EVERY ?= 1
mutants: $(READY) system
	@$(INSTALL) mutants
	$(BIN)/python -m benchmarks mutants --again --every $(EVERY)
	$(BIN)/python -m benchmarks mutants --write benchmarks/results

# inputs without end for everything that reads what others wrote: make fuzz TARGET=recipes MINUTES=60
TARGET ?= all
MINUTES ?= 10
fuzz: $(READY)
	@$(INSTALL) fuzz || echo "fuzz: atheris is not installed (it has wheels for x86-64 and Python 3.12 or newer): hypothesis draws the inputs"
	$(BIN)/python -m benchmarks fuzz $(TARGET) --minutes $(MINUTES)
	$(BIN)/python -m benchmarks fuzz merge

# the wheel that `pip install` and `uvx --from` take, in dist/
wheel: $(READY)
	rm -rf dist
	@$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist

# lock files in requirements/, compiled by uv: make lock UPGRADE=1 takes the newest of everything, UPGRADE=NAME of one
lock: $(READY)
	$(BIN)/python requirements/lock.py --upgrade "$(UPGRADE)"

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
