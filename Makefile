# make demo | test | lint | fresh | clean; `make help` says what each does.
PYTHON ?= python3
ZOO_SHARED ?= ../shared
WORKERS ?= 2
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

export ZOO_SHARED

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint fresh clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.core ## install the core into .venv and classify the pictures in samples/
	$(BIN)/zoo predict pape-vit-t-imagenette samples/

# Tests run offline and one thread each: WORKERS processes share the cores better than threads do.
test: export OMP_NUM_THREADS := 1
test: export HF_HUB_OFFLINE := 1
test: export HF_HUB_DISABLE_XET := 1
test: export HF_HUB_DISABLE_TELEMETRY := 1
test: export GRADIO_ANALYTICS_ENABLED := False
test: export YOLO_OFFLINE := true
test: $(VENV)/.dev ## install the development extras into .venv and run the tests
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

lint: $(VENV)/.dev ## ruff (check and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fresh: ## clone HEAD to a temporary folder, run demo and test there, remove it
	@if [ -n "$$(git status --porcelain)" ]; then echo "note: uncommitted changes are not part of the clone"; fi
	@shared=$$(cd "$$ZOO_SHARED" 2>/dev/null && pwd || echo "$$ZOO_SHARED"); \
	folder=$$(mktemp -d "$${TMPDIR:-/tmp}/pape-zoo-fresh.XXXXXX"); \
	trap 'rm -rf "$$folder"' EXIT; trap 'exit 130' INT TERM; \
	git clone --quiet . "$$folder/clone" && \
	for goal in demo test; do $(MAKE) -C "$$folder/clone" $$goal ZOO_SHARED="$$shared" || exit 1; done

clean: ## remove .venv, caches and build outputs
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: an installation is repeated only when what it was made from changed.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "error: $(PYTHON) is missing or older than Python 3.11; name a newer one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || { \
	echo "error: '$(PYTHON) -m venv' failed; Debian and Ubuntu have it in the package python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.core: $(VENV)/.created pyproject.toml constraints.txt
	@echo "installing pape-zoo into $(VENV) (about 6 GB with PyTorch; minutes the first time)"
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "adding the development extras to $(VENV)"
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@
