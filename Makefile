# Every target sets itself up: a virtual environment in .venv with pinned packages, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup system worlds browser demo test test-slow check format docs docs-site bench mutants fuzz clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("whetstone needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# worlds of other packages whose tests are skipped without them; some are built from C
worlds: $(READY)
	@$(BIN)/python -c 'import textworld, scienceworld, textarena, jericho' 2>/dev/null \
	  || $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,worlds]' >/dev/null 2>&1 \
	  || echo "TextWorld, ScienceWorld, TextArena or Jericho could not be installed: their tests are skipped"

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

# what leads that browser, and what looks for whom a page leaves out
browser: $(READY)
	@$(BIN)/python -c 'import playwright, axe_playwright_python' 2>/dev/null \
	  || $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0 --editable '.[dev,browser]' >/dev/null 2>&1 \
	  || echo "Playwright could not be installed: the tests of the viewer's pages are skipped"

# trains the recipe `demo` into runs/demo; a run that was stopped goes on, a finished one is shown again
demo: $(READY)
	$(BIN)/whetstone train demo --run-dir runs/demo $(if $(wildcard runs/demo/recipe.yaml),--resume)

# writes nothing outside .venv but bytecode; what is not installed is skipped, with the command that brings it. Three
# processes on two cores: many tests wait
test: $(READY)
	@$(BIN)/python -m compileall -q src  # for the processes that tests begin
	$(BIN)/pytest -m "not slow" -n 3 --dist worksteal

# the rest: long runs, sweeps, attacks, kills, and properties with all their examples
test-slow: $(READY) system worlds browser
	@$(BIN)/python -m compileall -q src
	$(BIN)/pytest -m "slow or hypothesis" --hypothesis-profile thorough -n 2 --dist worksteal

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/generate.py --check

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# the pages of docs/, from the docstrings
docs: $(READY)
	$(BIN)/python docs/generate.py

# the same as a site with search, in build/site; a link that leads nowhere ends it
docs-site: docs
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0 --editable ".[dev,site]"
	$(BIN)/python docs/gather.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# all benchmarks, or one: make bench NAME=engine
NAME ?= engine concurrency rollout learner end_to_end learn asynchronous crash faults checkpoint credit methods branching stability tools environments worlds rewards evaluation
bench: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0 --editable ".[dev,bench]"
	set -e; for name in $(NAME); do $(BIN)/python benchmarks/$$name.py; done

# changes of algorithms/ and rewards/ that no test notices: all (hours), or one in so many: make mutants EVERY=8
EVERY ?= 1
mutants: $(READY) system
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0 --editable ".[dev,mutants]"
	$(BIN)/python benchmarks/mutants.py --again --every $(EVERY)
	$(BIN)/python benchmarks/mutants.py --write benchmarks/results

# inputs without end for everything that reads what others wrote: make fuzz TARGET=recipes MINUTES=60
TARGET ?= all
MINUTES ?= 10
fuzz: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0 --editable ".[dev,fuzz]"
	$(BIN)/python benchmarks/fuzz.py $(TARGET) --minutes $(MINUTES)
	$(BIN)/python benchmarks/fuzz.py merge

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
