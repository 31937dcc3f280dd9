# What people and CI type. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv pip
STAMP := $(VENV)/.installed-$(shell cat requirements/{tools,core,torch}.txt pyproject.toml | cksum | cut -d' ' -f1)$(TORCH_BACKEND)
DEV_STAMP := $(VENV)/.dev-$(shell cksum < requirements/dev.txt | cut -d' ' -f1)
COMPILE = uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url $(UPGRADE)
SAY = @printf '\033[1m==> %s\033[0m\n'

.PHONY: help install demo test test-slow lint format bench-data bench-decode bench-quality bench-synthetic bench-metrics bench-train bench-equivalence bench-engines bench-detect bench-growth bench-yolo bench-app chaos requirements programs audit clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo "  TORCH_BACKEND=cpu  before any of them: a torch without CUDA (saves 4 GB; not checked against hashes)"

install: $(STAMP) ## what Sightline needs, into .venv

$(STAMP):
	$(SAY) "Installing Sightline into $(VENV) (about 6 GB with torch's CUDA libraries; a minute or two the first time)"
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Python 3.11 or newer is needed, {sys.executable} is {v.major}.{v.minor}: make PYTHON=python3.12 …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/tools.txt
ifdef TORCH_BACKEND
	$(SAY) "torch and torchvision for $(TORCH_BACKEND), unhashed"
	@$(UV) install --python $(BIN)/python --torch-backend $(TORCH_BACKEND) -r requirements/torch.in
	@$(UV) install --python $(BIN)/python --compile-bytecode -r requirements/core.txt
else
	@$(UV) install --python $(BIN)/python --compile-bytecode --require-hashes -r requirements/core.txt -r requirements/torch.txt
endif
	@$(UV) install --python $(BIN)/python --quiet --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/.installed-* $(VENV)/.dev-* && touch $@

$(DEV_STAMP): $(STAMP)
	$(SAY) "Installing what lint and tests need"
	@$(UV) install --python $(BIN)/python --compile-bytecode -r requirements/dev.txt
	@rm -f $(VENV)/.dev-* && touch $@

demo: install ## the main job on synthetic circuit boards, in about four minutes
	@$(BIN)/sightline demo

test: $(DEV_STAMP) programs ## all quick tests; SYSTEM_PACKAGES=no installs no Debian packages and skips what needs them
	$(SAY) "Testing"
	@$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal $(PYTEST_ARGS)

test-slow: $(DEV_STAMP) programs ## the slow tests, which `make test` leaves out
	$(SAY) "Testing what is slow"
	@$(BIN)/python -m pytest -m slow -n 2 --dist loadscope $(PYTEST_ARGS)

programs:
	@scripts/test-programs

audit: $(STAMP) ## bill of materials (sbom.json) and known vulnerabilities of the lock files; exit code 2 if it could not ask
	@test -x $(VENV)/audit/bin/python || $(BIN)/uv venv --quiet --python $(BIN)/python $(VENV)/audit
	@$(UV) install --quiet --python $(VENV)/audit/bin/python --require-hashes -r requirements/audit.txt
	@$(VENV)/audit/bin/python scripts/audit.py sbom.json

lint: $(DEV_STAMP) ## ruff and mypy
	$(SAY) "Linting"
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(DEV_STAMP) ## let ruff format the code
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench-data: $(DEV_STAMP) ## ingest and reading against the notebook way; results go to docs/benchmarks/data.md
	@$(BIN)/python bench/data.py

bench-decode: $(DEV_STAMP) ## camera photos with EXIF at reduced scale; results go to docs/benchmarks/decode.md
	@$(BIN)/python bench/decode.py

bench-quality: $(DEV_STAMP) ## `nano` on DeepPCB, about an hour; results go to docs/benchmarks/quality.md
	@$(BIN)/python bench/quality.py

bench-synthetic: $(DEV_STAMP) ## what `make demo` trains, on held-out boards and on DeepPCB; docs/benchmarks/synthetic.md
	@$(BIN)/python bench/synthetic.py

bench-metrics: $(DEV_STAMP) ## exact mAP against pycocotools; results go to docs/benchmarks/metrics.md
	@$(BIN)/python bench/metrics.py

bench-train: $(DEV_STAMP) ## images/s against torchvision's loop, and what a second worker buys; docs/benchmarks/{train,workers}.md
	@$(BIN)/python bench/train.py
	@$(BIN)/python bench/workers.py

bench-equivalence: $(DEV_STAMP) ## 1 to 4 workers train the same; results go to docs/benchmarks/equivalence.md
	@$(BIN)/python bench/equivalence.py

bench-engines: $(DEV_STAMP) ## torch, ONNX Runtime and OpenVINO on this CPU; results go to docs/benchmarks/engines.md
	@$(BIN)/python bench/engines.py

bench-detect: $(DEV_STAMP) ## images/s of detection against the notebook's pipeline and the limit; docs/benchmarks/detect.md
	@$(BIN)/python bench/detect.py

bench-growth: $(DEV_STAMP) ## detection over 1,000 to 100,000 images, a million names; docs/benchmarks/growth.md
	@$(BIN)/python bench/growth.py

bench-yolo: $(DEV_STAMP) ## YOLOv8n on DeepPCB against Ultralytics' own trainer; results go to docs/benchmarks/yolo.md
	@$(BIN)/python bench/yolo.py

bench-app: $(DEV_STAMP) programs ## the app over a job of a million images; results go to docs/benchmarks/app.md
	@$(BIN)/python bench/app.py

chaos: $(DEV_STAMP) ## kill training and detection: workers, drivers, nodes; tear files; docs/benchmarks/chaos*.md
	@$(BIN)/python bench/chaos.py
	@$(BIN)/python bench/chaos_workers.py
	@$(BIN)/python bench/chaos_detect.py

requirements: ## compile the locked requirements anew (needs uv)
	$(COMPILE) pyproject.toml --extra dev --override requirements/without-torch.txt --output-file requirements/dev.txt
	$(COMPILE) pyproject.toml --extra all --override requirements/without-torch.txt --constraint requirements/dev.txt \
	  --output-file requirements/core.txt
	$(COMPILE) requirements/torch.in --constraint requirements/dev.txt --output-file requirements/torch.txt
	$(COMPILE) requirements/tools.in --output-file requirements/tools.txt
	$(COMPILE) requirements/audit.in --output-file requirements/audit.txt

clean: ## remove the environment and caches, not the workspace
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
