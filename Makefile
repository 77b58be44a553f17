# The two commands: `make demo` trains a small model through the library, `make test` runs the
# suite. Both need only Python >= 3.10 and a C++ compiler, or EXTRAS=compiler for ziglang's; everything else goes into
# .venv.

PYTHON ?= python3
# TORCH=2.15.0 works with that torch, in a virtual environment of its own: .venv-torch-2.15.0
TORCH ?=
comma := ,
VENV := .venv$(if $(TORCH),-torch-$(TORCH))
BIN := $(VENV)/bin
# What the demo needs is installed first, what the tests need later.
DEMO_READY := $(VENV)/.ready_demo
READY := $(VENV)/.ready
CONSTRAINTS := $(if $(TORCH),$(VENV)/constraints.txt,build_tools/constraints.txt)
# SLOW=1 adds the tests that take minutes; ARGS goes to the program that a target runs.
SLOW ?= 0
# What else is installed; some tests skip without ccl (1.2 GB) and frameworks: EXTRAS=ccl,frameworks
EXTRAS ?=
ARGS ?=
# A constraint file in pip's own configuration may exclude the chosen torch, so ours replaces it.
# On a terminal pip shows its progress; elsewhere each step is one line.
PIP_INSTALL := quiet=; test -t 1 || quiet=--quiet; $(if $(TORCH),PIP_CONSTRAINT=$(CONSTRAINTS) )$(BIN)/python -m pip \
  install $$quiet --disable-pip-version-check -c $(CONSTRAINTS)
MARKERS := $(if $(filter 1,$(SLOW)),,-m "not slow")

.PHONY: help demo test lint format bench docs release clean

help:
	@echo "make demo    train a small character model with CPUAdam, and compare it with torch.optim.AdamW"
	@echo "make test    lint, type checks and the quick tests; SLOW=1 adds the slow ones, TORCH=2.15.0 uses that torch"
	@echo "make lint    ruff, mypy and import-linter"
	@echo "make format  let ruff format the code"
	@echo "make bench   short benchmarks; benchmarks/RESULTS.md has complete runs"
	@echo "make docs    build the documentation into site/; broken links are errors"
	@echo "make release sdist, wheels, checksums and notes in dist/, checked; ARGS: targets, --allow-dirty"
	@echo "make clean   remove .venv and what builds left"

DOCS_READY := $(VENV)/.ready_docs

$(DEMO_READY): pyproject.toml setup.py build_tools/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python >= 3.10 is needed, this is " + sys.version.split()[0] + "; set PYTHON=" if sys.version_info < (3, 10) else 0)'
	@echo "Creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) || (echo "Creating $(VENV) failed; on Debian and Ubuntu: apt-get install python3-venv" && false)
	@$(if $(TORCH),sed 's/^torch==.*/torch==$(TORCH)/' build_tools/constraints.txt > $(CONSTRAINTS))
	@echo "Installing setuptools and wheel ..."
	@$(PIP_INSTALL) setuptools wheel
	@echo "Installing torch (2 GB; 0.2 GB with PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu), accel-ops$(if $(EXTRAS), with $(EXTRAS)) and numpy ..."
	@$(PIP_INSTALL) -e '.[demo$(if $(EXTRAS),$(comma)$(EXTRAS))]'
	@touch $@

$(READY): $(DEMO_READY)
	@echo "Installing the test tools (0.5 GB) ..."
	@$(PIP_INSTALL) -e '.[test]'
	@touch $@

$(DOCS_READY): $(DEMO_READY)
	@echo "Installing mkdocs ..."
	@$(PIP_INSTALL) -e '.[docs]'
	@touch $@

demo: $(DEMO_READY)
	$(BIN)/python -m examples.train_characters $(ARGS)

# Only with the pinned torch: mypy reads the types of torch, which differ between releases.
test: $(if $(TORCH),$(READY),lint)
	$(BIN)/python -m pytest -n 2 $(MARKERS) $(ARGS)

lint: $(READY)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports --no-logo

format: $(READY)
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

bench: $(READY)
	$(BIN)/python -m benchmarks.jit --quick $(ARGS)
	$(BIN)/python -m benchmarks.adam --quick $(ARGS)
	$(BIN)/python -m benchmarks.accelerator --quick $(ARGS)

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet $(ARGS)
	@echo "Built site/. To read it: $(BIN)/python -m http.server -d site"

# In an environment of its own: the tests in .venv must not find ziglang.
release:
	@$(MAKE) --no-print-directory VENV=.venv-release EXTRAS=release,compiler .venv-release/.ready_demo
	.venv-release/bin/python build_tools/release.py $(ARGS)

clean:
	rm -rf .venv .venv-torch-* .venv-release build dist out site op_builder/_prebuilt *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
