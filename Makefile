# Every target sets up what it needs: a machine with Python 3.11 or later and make is enough.
.DEFAULT_GOAL := help
.PHONY: help demo docs test check lint types classes catalogs modules suite room bench transactions torture clients clean

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TYPES := .mypy_cache/report
# Without compiled modules, every process of a test would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## Derive from the examples' data, and check it; 2-3 minutes
	@$(BIN)/python examples/demo.py

# The site is built by MkDocs, which nothing else needs.
docs: $(READY) ## Build the documentation in build/site, and check its links
	@$(BIN)/python -c 'import material' 2> /dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@$(BIN)/python -m website.pages
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean --config-file website/mkdocs.yml
	@echo "read it, with search:"; echo "  $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000"

# All that the suite needs is made at the same time. mypy, with low priority, takes the time that the others leave, and
# its report comes last.
test: $(READY) ## All that CI runs: check, and the tests of catalogs and code
	@rm -f $(TYPES)
	@$(MAKE) --no-print-directory -k -j 5 suite types; status=$$?; test ! -f $(TYPES) || cat $(TYPES); exit $$status

classes: $(READY)
	@$(BIN)/flowctl prepare

catalogs: $(READY)
	@$(BIN)/flowctl generate --cache --source flow.yaml > /dev/null
	@$(BIN)/flowctl test --source flow.yaml

# Each process of pytest would compile the modules of all tests again. What fails here fails in pytest, which says more.
modules: $(READY)
	@$(BIN)/python -m pytest --collect-only -q > /dev/null 2>&1 || true

# Two processes more than there are processors, at most 5: tests wait for other processes almost half of their time.
# A process that has died is not started again: it would be given the test that killed it once more, and so for ever.
suite: $(READY) lint classes catalogs modules
	@$(BIN)/python -m pytest -n $$($(BIN)/python -c 'import os; print(min(os.cpu_count(), 3) + 2)') \
	    --max-worker-restart 0 --dist loadgroup --no-loadscope-reorder

types: $(READY) lint
	@mkdir -p .mypy_cache; nice $(BIN)/mypy > $(TYPES)

check: $(READY) lint ## Lint, formatting, types, and the direction of imports
	@$(BIN)/mypy

lint: $(READY)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports

room: $(READY) ## Check and test one room, such as ROOM=reduce
	@test -n '$(ROOM)' -a -d 'derive/$(ROOM)' || { echo "name a folder of derive/: make room ROOM=reduce" >&2; exit 1; }
	@$(BIN)/ruff check derive/$(ROOM) $(wildcard tests/$(ROOM))
	@$(BIN)/ruff format --check derive/$(ROOM) $(wildcard tests/$(ROOM))
	@$(BIN)/mypy derive/$(ROOM)
	@$(BIN)/lint-imports > /dev/null || $(BIN)/lint-imports
	@test ! -d 'tests/$(ROOM)' || $(BIN)/python -m pytest 'tests/$(ROOM)'

# Limits that are missed fail it, but only in the end, when everything is measured.
bench: $(READY) ## Measure the figures of docs/figures.md on this machine
	@$(BIN)/python -c 'import bytewax' 2> /dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    --only-binary bytewax -e '.[bench]' || echo "bytewax cannot be had here, so it is passed over" >&2
	@status=0; \
	for part in 'run $(BENCH)' reduce check typescript python latency cycles materialize views sql freshness instances joining metadata pages reports; do $(BIN)/python -m bench.$$part || status=1; done; \
	exit $$status

transactions: $(READY) ## Measure 10,000 small transactions; takes some minutes
	@$(BIN)/python -m bench.transactions

torture: $(READY) ## Kill processes at random moments, and more; takes hours
	@$(BIN)/python tests/engine/torture.py --example acmebank --rounds 200
	@$(BIN)/python tests/engine/torture.py --example flights --rounds 50
	@for example in acmebank flights; do \
	    PYTHONPATH=. $(BIN)/python tests/materialize/torture_tables.py --example $$example --rounds 100 || exit 1; done
	@PYTHONPATH=. $(BIN)/python tests/sql/torture_sql.py --rounds 100
	@PYTHONPATH=. $(BIN)/python tests/sql/maintenance/controller/torture_instances.py --rounds 200
	@$(BIN)/python -m pytest -m torture
	@FLOW_LAW_EXAMPLES=200 $(BIN)/python -m pytest tests/engine/test_power_loss.py
	@FLOW_LAW_EXAMPLES=200 $(BIN)/python -m pytest --timeout 0 -o faulthandler_timeout=0 -m 'hypothesis and not torture'

# A client of Node.js is left out if there is no `npm`; drivers of JDBC and ODBC come from Debian, if there is `apt-get`.
DRIVERS := libpostgresql-jdbc-java libscram-java odbc-postgresql libodbc2 libodbcinst2 libltdl7
clients: $(READY) ## Install PostgreSQL's clients in .clients, and use each
	@test -x .clients/bin/python || $(PYTHON) -m venv .clients
	@.clients/bin/python -m pip install --quiet --disable-pip-version-check -r tests/clients/requirements.txt
	@if command -v apt-get > /dev/null; then mkdir -p .clients/debian && cd .clients/debian && \
	    apt-get -qq download $(DRIVERS) && for file in *.deb; do dpkg -x "$$file" .; done; fi
	@if command -v npm > /dev/null; then cp tests/clients/package.json .clients/ && \
	    npm install --prefix .clients --ignore-scripts --no-audit --no-fund --loglevel error; fi
	@$(BIN)/python -m pytest -m clients tests/clients

clean: ## Remove the environment and caches; data (.flow) stays
	rm -rf .venv .clients .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info
	find derive connectors examples tests -name __pycache__ -prune -exec rm -rf {} +

# The exit status does not survive the pipe that shortens the output, but the stamp tells whether everything is installed.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    printf '%s\n' "Python 3.11 or later is needed, and '$(PYTHON)' is not." \
	        "Name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { \
	    rm -rf .venv; printf '%s\n' "'$(PYTHON)' cannot make virtual environments." \
	        "On Debian and Ubuntu, install python3-venv." >&2; exit 1; }
	@echo "Installing into .venv; the first time this fetches Spark, Java and Deno,"; echo "and takes some minutes"
	@rm -f $@; { PYTHONUNBUFFERED=1 $(BIN)/python .ci/install.py && touch $@; } \
	    | sed -n -e 's/^Collecting \([^ (]*\).*/  \1/p' -e '/^ *Downloading/p' -e '/^ *Building/p'; test -f $@
