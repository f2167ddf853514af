# make demo | make test: each does all of the set-up on a fresh machine, then runs. The second time they start at once.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
EXTRAS := vision,kernels,ray,search,dev
WORKERS ?= 2
ARGS ?=

# The environment is complete if it carries a stamp of exactly these two files.
STAMP := $(VENV)/.complete-$(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)

# Every pip, also the one inside an isolated build (PIP_BUILD_CONSTRAINT since pip 25.3), sees the pins: one torch.
PINS := PIP_CONSTRAINT="$(CURDIR)/constraints.txt" PIP_BUILD_CONSTRAINT="$(CURDIR)/constraints.txt" \
        PIP_DISABLE_PIP_VERSION_CHECK=1

# Nothing here asks the network or reports home once the set-up is done.
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false
OFFLINE := HF_HUB_OFFLINE=1

.PHONY: help demo test lint format docs setup clean

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' Makefile | awk -F':.*## ' '{ printf "  make %-8s %s\n", $$1, $$2 }'

demo: $(STAMP) ## set up if needed, then train each family small and show a table
	@$(OFFLINE) $(BIN)/python -m tokenmix.demo $(ARGS)

test: $(STAMP) ## set up if needed, then run all tests (ARGS="-k name" for some, WORKERS=n)
	@$(OFFLINE) OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

lint: $(STAMP) ## ruff (rules and format) and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP) ## let ruff fix and format what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(STAMP) ## build the documentation, with the interface, into site/
	@$(PINS) $(BIN)/python -m pip install --quiet -e ".[docs]"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "documentation  $(CURDIR)/site/index.html"

setup: $(STAMP) ## only the set-up

clean: ## remove the virtual environment, caches and build outputs
	rm -rf $(VENV) build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP):
	@python='$(PYTHON)'; \
	for candidate in python3 python3.11 python3.12 python3.13; do \
	  [ -z "$$python" ] || break; \
	  "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	    2>/dev/null && python="$$candidate" || true; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: no Python 3.11, 3.12 or 3.13 with venv found (Debian: apt-get install python3-venv);" \
	       "name one with: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	"$(BIN)/python" -m pip --version >/dev/null 2>&1 || "$$python" -m venv --clear "$(VENV)"; \
	rm -f "$(VENV)"/.complete-*; \
	log="$(VENV)/setup.log"; \
	echo "setting up $(VENV) with $$("$(BIN)/python" -V) (about 2 minutes the first time; details in $$log)"; \
	$(PINS) "$(BIN)/python" -m pip install --no-compile -e ".[$(EXTRAS)]" 2>&1 | tee "$$log" | awk ' \
	  /^(Collecting|Processing) / { if (++n % 25 == 0) print "  " n " packages found" } \
	  /^Installing collected packages/ { print "  installing " n " packages" } \
	  /^ERROR/ { print } { fflush() }' \
	|| { tail -n 20 "$$log" >&2; echo "error: the set-up failed; all of its output is in $$log" >&2; exit 1; }; \
	touch "$@"; \
	echo "  ready"
