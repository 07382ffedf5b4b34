# Everything a newcomer needs: `make run` and `make test` on a machine with Python 3.11 or newer (docs/start/install.md).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Says in one line that a Python is too old or that there is no network.
FIRST := $(PYTHON) deployments/first_install.py
PIP := $(FIRST) pip $(BIN)/pip --quiet --disable-pip-version-check
INSTALL := $(PIP) install --no-compile -c constraints.txt
# What `make run` needs, and what the tests need besides: a newcomer waits for the first only.
LOCAL := $(VENV)/.local
SOURCES := harness searchers registry service tasks flows deployments
STAMP := $(VENV)/.installed

.PHONY: run test test-all check bench chaos docs pictures images wheel clean setup

setup: $(STAMP)

# Pip would compile what it installs on one core, and that takes as long as the rest: the other core compiles what
# is there, and both the remainder. Not what nearly nobody imports, a quarter of it all: packages' own tests, models of
# Transformers (who imports such a file compiles it then). A few files that are meant for other Pythons cannot be
# compiled, which pip ignores, too.
COMPILE := $(BIN)/python -m compileall -qq -x 'site-packages/(.*/tests?|transformers/models)/' $(VENV)/lib
define install
@$(FIRST) python
@echo "installing Python packages into $(VENV): some minutes the first time, and nothing is printed meanwhile"
@$(PYTHON) -m venv $(VENV)
@$(INSTALL) "torch==2.13.0"
@$(COMPILE) & $(INSTALL) -e ".[$(1)]"; installed=$$?; wait; exit $$installed
@$(COMPILE) -j 0 || true
@touch $@
endef

$(LOCAL): pyproject.toml constraints.txt
	$(call install,local)

$(STAMP): pyproject.toml constraints.txt
	$(call install,dev)
	touch $(LOCAL)

run: $(LOCAL) ## the local cluster, the example search, and its best model put to work
	$(BIN)/det flow run examples/digits/random.yaml examples/digits
	$(BIN)/python examples/digits/classify.py
	@echo "open it: $(BIN)/det open"

# One more than the cores of a small machine: a test that waits for its cluster may leave a core idle.
WORKERS ?= 3

# Where PYTHONDONTWRITEBYTECODE is set, each of the processes that the tests start would compile the sources anew.
# A test that passes at once when it is repeated is named and counted ("rerun").
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder --reruns 1 -raR
# With a commit: also the long suites that the changes since then concern (tests/tiers.py).
SINCE ?=

test: $(STAMP) ## every suite but the long ones, WORKERS processes side by side (tests/conftest.py)
	$(BIN)/python -m compileall -q $(SOURCES)
	$(PYTEST) $$($(BIN)/python -m tests.tiers $(SINCE))

test-all: $(STAMP) ## every suite; who gets to a green end writes the commit into tests/GREEN
	$(BIN)/python -m compileall -q $(SOURCES)
	$(PYTEST)

check: $(STAMP) ## style and types
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/mypy

docs: $(STAMP) ## the pages that are written from the code
	$(BIN)/python -m determined.cli.reference > docs/reference/commands.md
	$(BIN)/python -m determined.cli.variables > docs/reference/environment.md
	$(BIN)/python -m determined_service.reference > docs/reference/rest.md
	$(BIN)/python -m determined_service.base.settings_page > docs/reference/settings.md

pictures: $(STAMP) ## the pictures of the book, from a running product
	$(BIN)/python -m docs.pictures.make $(PICTURES)

bench: $(STAMP) ## prints figures; nothing is asserted
	$(BIN)/python -m benchmarks

FOR ?= 600
SEED ?= $(shell date +%s)

chaos: $(STAMP) ## searches on a cluster where processes die all the time, for FOR seconds; DOCKER=1: and containers; KUBERNETES=1.33: and pods
	$(BIN)/python -m tests.chaos.run $(FOR) $(SEED) $(if $(DOCKER),--docker) $(if $(KUBERNETES),--kubernetes $(KUBERNETES))

BASE ?= python:3.11-slim
IMAGES ?= harness service agent

images: $(STAMP) ## IMAGES from BASE, which is made from Debian's packages if it cannot be pulled (docs/operate/images.md)
	deployments/docker/build.sh $(BIN)/python $(BASE) $(IMAGES)

wheel: ## dist/….whl, and the command that installs it elsewhere
	@$(FIRST) python
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	rm -f dist/determined_prefect-*.whl
	@$(PIP) wheel --no-deps --wheel-dir dist .
	@echo "pip install -c constraints.txt '$$(ls dist/determined_prefect-*.whl)[local]'"

clean: ## ends the local cluster (its data stay) and removes what make built
	-test -x $(BIN)/det && $(BIN)/det deploy local cluster-down
	rm -rf $(VENV) .python build dist .mypy_cache .ruff_cache .pytest_cache
