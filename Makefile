# Two verbs for everyone: `make up` and `make test`. The rest serves them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=
TSC    := tools/js/node_modules/typescript/bin/tsc
# Tests wait for servers and processes half of their time, so there are two test processes for each core. A single file
# is quicker with PYTEST_ARGS="tests/core -n0".
PARALLEL    := -n $(shell $(PYTHON) -c 'import os; print(2 * len(os.sched_getaffinity(0)))') --dist worksteal
PYTEST_ARGS ?= $(PARALLEL) -m "not thorough"

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.PHONY: up up-priced setup dev test thorough proofs chaos simulate check jscheck package programs format lock bench site screenshots peers clean help

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

up: setup ## Start everything on this machine; ARGS="--port 9000" is passed on to pyoco-server up
	@exec $(BIN)/python tools/up.py up --with-examples $(ARGS)

up-priced: dev ## Start priced runs on PostgreSQL, Valkey and an emulator of S3 and SQS; ARGS="--port 9000"
	@exec $(BIN)/python tools/up_priced.py $(ARGS)

setup: $(VENV)/.runtime ## Create .venv from the hashed lock

dev: $(VENV)/.dev

test: dev programs $(TSC) ## Run the suite against real servers
	$(BIN)/python -m pytest $(PYTEST_ARGS)

thorough: dev programs $(TSC) ## Run what the suite leaves out: long tests, and property tests with all their examples
	PYOCO_TEST_PROFILE=thorough $(BIN)/python -m pytest $(PARALLEL) -m "thorough or hypothesis"

# One after another: each of them wants the whole machine. The lines with their numbers are added to PYOCO_PROOFS_REPORT.
PROOFS ?= tests/grid
proofs: dev ## Run the experiments behind docs/guarantees.md in full size; PROOFS="tests/grid -k killed" runs some
	PYOCO_PROOFS=full $(BIN)/python -m pytest $(PROOFS) -p no:xdist -rP --timeout 2400

# A whole deployment under load and under fault. The seed of a storm is its first line and its last one.
MINUTES ?= 2
LAYOUT  ?= both
chaos: dev ## Storms over one NATS node and over three; MINUTES=10 SEED=7 LAYOUT=one|three FAULTS=kill,wire
	PYTHONPATH=tests $(BIN)/python -m storm --minutes $(MINUTES) --layout $(LAYOUT) $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS)) $(ARGS)

# Whole deployments in virtual time, each from a seed: kills, pauses, lost messages. A failing seed prints its history and
# the smallest list of faults that still fails.
SEEDS ?= 100
simulate: dev ## Simulate whole deployments; SEEDS=1000 draws fresh seeds, SEED=123 plays one
	cd tests && $(abspath $(BIN))/python -m simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

check: dev ## Lint, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory jscheck

jscheck: $(TSC) ## Types of the dashboard's modules, from their comments
	$(BIN)/node $(TSC) --project tools/js/tsconfig.json

# Debian's own packages: a browser, tesseract, and letters. Elsewhere install tesseract, and set CHROMIUM to a Chromium or
# Chrome.
programs: dev
	@$(BIN)/python tools/programs.py

package: jscheck ## Build the wheel into dist/, with the dashboard bundled
	rm -rf build
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

# A broken link or anchor ends the build. The pages load nothing from elsewhere, and also open from the folder.
site: dev ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

screenshots: dev programs ## Take the pictures of the README and the docs anew
	$(BIN)/python tools/screenshots.py

format: dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: dev ## Measure submit, drain, latency, memory and cold start; BENCH="submit" runs one
	$(BIN)/python -m bench $(BENCH)

peers: dev ## Measure ours beside Celery, Dramatiq, arq, RQ, taskiq, procrastinate and Prefect; PEERS="--quick" is passed on
	$(BIN)/python -m bench.peers $(PEERS)

lock: dev ## Resolve the dependencies anew into requirements/
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade --quiet pyproject.toml --group build -o requirements/runtime.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade --quiet pyproject.toml --group dev -c requirements/runtime.txt -o requirements/dev.txt
	echo 'psycopg[binary]' | $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet - -c requirements/dev.txt -o requirements/postgres.txt
	printf '%s\n' 'redis[hiredis]' aiobotocore | $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet - -c requirements/dev.txt -o requirements/stores.txt
	for peer in bench/peers/requirements/*.in; do $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade --quiet $$peer -o $${peer%.in}.txt || exit 1; done

clean:
	rm -rf $(VENV) site tools/js/node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build *.egg-info src/*.egg-info

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install -y python3-venv"; exit 1; }
	@touch $@

$(VENV)/.runtime: $(VENV)/.python requirements/runtime.txt pyproject.toml
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/runtime.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements/dev.txt
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	@touch $@

$(TSC): tools/js/package-lock.json | $(VENV)/.dev
	cd tools/js && PATH="$(abspath $(BIN)):$$PATH" npm ci --ignore-scripts --silent
	@touch $@
