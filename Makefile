# Penstock's build. `make` alone builds everything; `make help` lists the targets.
# Needs Go, gcc, g++, make and python3. CUDA is not needed to build or to test.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := build

GO ?= go
PYTHON ?= python3
NM ?= nm
# make's own defaults are cc and g++; ?= would not replace them.
ifeq ($(origin CC),default)
CC := gcc
endif
export CC CXX
export CGO_ENABLED := 1

# -buildvcs=false: a checkout owned by another user (a container's mount) must build too.
# The version is stamped below instead. -trimpath: what is compiled for the command serves
# vet and the tests as well, in whatever folder.
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false -trimpath)
# The version stands in the Python package. A commit with its tag is of that version; what is built between releases has its commit too.
RELEASE := $(shell sed -nE 's/^__version__ = "(.*)"/\1/p' python/penstock/_version.py)
TAGGED := $(filter v$(RELEASE),$(shell git describe --tags --exact-match --match 'v*' --dirty 2>/dev/null))
VERSION ?= $(RELEASE)$(if $(TAGGED),,$(addprefix +,$(shell git describe --always --exclude '*' --dirty 2>/dev/null)))
STAMP := -X main.version=$(VERSION)

FUZZTIME ?= 20s
# Seconds that all fuzz targets together may take; 0 is no limit. Targets left out are named.
FUZZTOTAL ?= 0
BENCHTIME ?= 1s

LIBS := lib/libpenstock.so lib/libpenstock_hook.so lib/libpenstock_torch.so

.PHONY: build wheel test test-all vet gofmt gotest gotest-all pytest lint demo fuzz same bench release clean help FORCE

build: bin/penstock $(LIBS) ## bin/penstock and the three libraries in lib/

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

# The Go and C builds find out by themselves what is stale.
FORCE:

bin/penstock: FORCE
	$(GO) build -ldflags "$(STAMP) -extldflags '-Wl,-z,lazy'" -o $@ ./cmd/penstock

# The library exports what cabi/penstock.h declares and nothing else: the linker
# gets the list, and the result is compared with it.
build/exports.txt: cabi/penstock.h
	@mkdir -p $(@D)
	@sed -nE 's/^[a-z][a-z_ ]*[ *](penstock_[a-z0-9_]+)\(.*\);.*/\1/p' $< | LC_ALL=C sort > $@
	@test -s $@ || { echo "$<: no declarations found, so nothing would be exported" >&2; exit 1; }

build/exports.map: build/exports.txt
	@{ echo '{ global:'; sed 's/$$/;/' $<; echo 'local: *; };'; } > $@

lib/libpenstock.so: build/exports.map FORCE
	@mkdir -p $(@D)
	$(GO) build -buildmode=c-shared -ldflags "$(STAMP) -extldflags '\"-Wl,--version-script=$(abspath build/exports.map)\"'" -o $@ ./cabi
	@rm -f lib/libpenstock.h # cgo's header; programs include cabi/penstock.h
	@diff build/exports.txt <($(NM) -D --defined-only $@ | awk '{print $$3}' | LC_ALL=C sort) \
		|| { echo "$@: the exported symbols (>) differ from cabi/penstock.h (<)" >&2; rm -f $@; exit 1; }

lib/libpenstock_hook.so: FORCE
	@mkdir -p $(@D)
	$(MAKE) --no-print-directory -C cabi/hook OUT=../../$@

lib/libpenstock_torch.so: FORCE
	@mkdir -p $(@D)
	$(MAKE) --no-print-directory -C cabi/torch OUT=../../$@

# Its name says what a machine must have: the processor, and the C library of this one or a newer one.
wheel: ## the Python package with the command and the libraries, in dist/
	@rm -rf dist
	$(MAKE) --no-print-directory build VERSION=$(RELEASE)
	$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist ./python
	@ls dist/*.whl

# CHECK=1: built twice, in two folders and with empty caches, and compared.
release: ## wheel, tar, bill of materials and checksums of this commit, in dist/ (CHECK=1: twice)
	@GO="$(GO)" release/make $(if $(CHECK),--check)

demo: bin/penstock ## the main job on the simulated GPU: a table, and demo.html
	bin/penstock demo

test: vet gofmt build gotest pytest ## vet, gofmt, Go and Python tests, without the long ones: 4.5 minutes on 2 cores, and 6.5 where only make demo has compiled anything yet

test-all: vet gofmt build gotest-all pytest ## the long ones too, and more seeds of the others: what CI runs

vet:
	$(GO) vet ./...

gofmt:
	@unformatted=$$(find . -path './.?*' -prune -o -name '*.go' -print0 | xargs -0 gofmt -l); \
	if [ -n "$$unformatted" ]; then echo "gofmt: run 'gofmt -w' on:" >&2; echo "$$unformatted" >&2; exit 1; fi
	@echo gofmt: clean

# Tests that run programs, many of which sleep: the race detector would watch the one that waits for them.
PROGRAMS = ./cabi/e2e ./cabi/hooktest
PACKAGES = $(filter-out $(PROGRAMS),$(patsubst github.com/penstock-gpu/penstock%,.%,$(shell $(GO) list ./...)))
# The packages that start threads or are made for several: in others the race detector finds nothing. Not those with tests
# that are skipped under it (internal/raced), nor the command, for which most has to be compiled, nor trace, most of which is
# of one thread: test-all runs all under it.
folders = $(shell grep -rlE --include='$(1)' '$(2)' ./*/ | xargs -n1 dirname | sort -u)
THREADED = $(call folders,*.go,^\s*go [a-z]|\.Go\b|\.Parallel\b|"sync)
RACED = $(filter $(filter-out $(call folders,*_test.go,internal/raced) ./cmd/penstock ./trace,$(THREADED)),$(PACKAGES))
UNRACED = $(filter-out $(RACED),$(PACKAGES))
# These take long: first, so that others run beside them.
LONG = ./um/live/swapped ./trace ./replay
long_first = $(filter $(LONG),$(1)) $(filter-out $(LONG),$(1))

gotest: SHORT := -short

# -vet=off: vet above looks at all of it, once.
gotest gotest-all: build
	$(GO) test -vet=off $(SHORT) -race -timeout 30m $(call long_first,$(if $(SHORT),$(RACED),$(PACKAGES)))
	$(GO) test -vet=off $(SHORT) -timeout 30m $(call long_first,$(UNRACED))
	$(GO) test -vet=off $(SHORT) -timeout 30m -parallel 6 $(PROGRAMS)

# pytest of the system when it has one, else from a local .venv (which sees the system's packages, such as torch).
pytest: build
	@py=$(PYTHON); \
	if ! $$py -c 'import pytest' 2>/dev/null; then \
		py=.venv/bin/python; \
		if ! $$py -c 'import pytest' 2>/dev/null; then \
			echo "pytest: not on this machine, installing it into .venv"; \
			$(PYTHON) -m venv --system-site-packages .venv || { echo "pytest: cannot make .venv; install python3-venv or pytest" >&2; exit 1; }; \
			.venv/bin/python -m pip install --quiet --disable-pip-version-check pytest; \
		fi; \
	fi; \
	echo "$$py -m pytest -q python/tests"; \
	PYTHONPATH="$(abspath python)$${PYTHONPATH:+:$$PYTHONPATH}" $$py -m pytest -q python/tests

lint: ## staticcheck, misspell and ruff, of pinned versions, which are installed into a cache
	@GO="$(GO)" .ci/lint/run

fuzz: ## every Fuzz target for FUZZTIME each (FUZZTIME=20s, FUZZTOTAL=0 seconds)
	@GO="$(GO)" .ci/fuzz "$(FUZZTIME)" "$(FUZZTOTAL)"

# BASE=REV: beside that commit instead of HEAD. TRACES=FILES: launch logs instead of the one in the repository.
same: ## does a change leave the demo, the plans and the simulated tables as they are? (BASE=HEAD)
	$(PYTHON) bench/same.py $(if $(BASE),--base $(BASE)) $(TRACES)

bench: ## Go benchmarks of every package (BENCHTIME=1s)
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) ./...

clean: ## remove what the targets above made
	rm -rf bin lib build dist .venv demo.html
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
