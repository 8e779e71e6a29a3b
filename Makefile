# make run   install into .venv and serve the embedded model on two ranks
# make test  install what the tests need and run the quick ones
# make driver-deb  the kernel module for RDMA over USB4, as a Debian package in dist/
# make driver-check  that package by DKMS for two kernels and into guests; no warning of gcc (W=1), sparse, checkpatch, lintian
#
# TORCH is what pip is asked for: set it to another version, or to a path or options of your own, if you need
# a particular build, e.g.  make run TORCH='torch==2.13.0'

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check
NATIVE := $(shell find native -type f 2>/dev/null)

.PHONY: run test check lint clean driver-deb driver-check

run: $(VENV)/.serve
	@exec $(VENV)/bin/ferrule serve --demo

test: $(VENV)/.test
	$(VENV)/bin/python -m pytest -q -n 2 --dist loadfile

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

driver-deb: $(VENV)/.test
	$(VENV)/bin/ferrule driver package --output dist

driver-check: $(VENV)/.test
	$(VENV)/bin/python -m pytest -q -m 'slow or soak' tests/driver/test_driver_dkms.py

check:
	@sh scripts/check-tools.sh $(PYTHON)

# What each extra has of the others: it need not be installed again.
HAS_test = serve
HAS_dev = serve test

$(VENV)/.serve $(VENV)/.test $(VENV)/.dev: $(VENV)/.%: pyproject.toml Makefile $(NATIVE)
	@sh scripts/check-tools.sh $(PYTHON)
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Ferrule into $(VENV) (PyTorch is the largest part; it is fetched once)"
	@$(PIP) install -q --upgrade pip
	$(PIP) install '$(TORCH)'
	$(PIP) install -q -e '.[$*]'
	@touch $@ $(HAS_$*:%=$(VENV)/.%)

clean:
	rm -rf $(VENV) build
