# `make demo` and `make test` are all a fresh machine needs: both make .venv with pinned versions first.
PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint gpu docs clean

demo: $(READY)
	@$(BIN)/tilegen demo

test: lint
	@$(BIN)/python -m pytest -q -m "not gpu" -n $(JOBS)

lint: $(READY)
	@$(BIN)/ruff check -q
	@$(BIN)/ruff format -q --check
	@$(BIN)/pyright --pythonpath $(BIN)/python --warnings

gpu: $(READY)
	@HYPOTHESIS_PROFILE=gpu $(BIN)/python -m pytest -q -m gpu

docs: $(READY)
	@$(BIN)/tilegen support > docs/support.md
	@$(BIN)/python -c "from tilegen.rules.hazards import markdown; print(markdown(), end='')" \
		> docs/hazards.md

clean:
	@rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@echo "setting up .venv with the versions of constraints.txt" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check \
		--constraint constraints.txt --editable '.[test]'
	@touch $@
