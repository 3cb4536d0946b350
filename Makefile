# SPDX-License-Identifier: Apache-2.0
# A thin front: meson builds, scripts/ do the rest. `make help` lists what there is.
.POSIX:
.SUFFIXES:

PREFIX = /usr/local
DESTDIR =
FUZZ_SECONDS = 60

.PHONY: all build setup demo test quick e2e real test-vllm test-sglang lint format docs tables asan tsan fuzz bench bench-peers install clean help

all: build

setup:
	@scripts/setup.sh build

build: setup
	@scripts/configure.sh release
	@scripts/build.sh

demo: build
	@build/kvroute demo

test:
	@scripts/setup.sh build test
	@scripts/test.py

quick: setup
	@scripts/test.py unit arch

real:
	@scripts/setup.sh build test
	@scripts/test.py real

test-vllm: build
	@scripts/setup.sh build test
	@KVROUTE_ENGINE=vllm /usr/bin/python3 -m pytest tests/engines -q

test-sglang: build
	@scripts/setup.sh build test
	@KVROUTE_ENGINE=sglang /usr/bin/python3 -m pytest tests/engines -q

e2e:
	@scripts/setup.sh build test
	@scripts/test.py e2e

lint:
	@scripts/setup.sh build test
	@scripts/configure.sh clang
	@scripts/lint.py

format:
	@scripts/format.sh

tables: build
	@nice -n 10 scripts/policy-tables --progress --kvroute build/kvroute

docs: build
	@tests/arch/check_docs.py --write build/kvroute docs

asan:
	@scripts/setup.sh build test
	@scripts/test.py asan

tsan:
	@scripts/setup.sh build test
	@scripts/test.py tsan

fuzz:
	@scripts/setup.sh build test
	@scripts/test.py fuzz --fuzz-seconds $(FUZZ_SECONDS)

bench: setup
	@scripts/setup.sh bench
	@scripts/configure.sh release
	@meson test -C build --benchmark --verbose --num-processes 1

bench-peers: build
	@scripts/setup.sh bench
	@bench/peers/run.py --fleets llama,vllm,sglang
	@bench/peers/run.py --policies --calibrate

install: build
	@DESTDIR=$(DESTDIR) scripts/install.sh $(PREFIX)

clean:
	@rm -rf build build-clang build-asan build-tsan

help:
	@echo 'make build     install what building needs, leave build/kvroute and libkvroute in build/'
	@echo 'make demo      build, then a fleet of simulated engines with policies side by side'
	@echo 'make test      everything below; ends with a line "N passed, N failed"'
	@echo 'make quick     unit and architecture tests only'
	@echo 'make e2e       end-to-end tests of build/kvroute'
	@echo 'make real      real llama.cpp servers and the official clients'
	@echo 'make test-vllm, make test-sglang   two real engines on this CPU with KV events (3 GB, minutes to install)'
	@echo 'make lint      formatting, refused functions, cppcheck, clang-tidy'
	@echo 'make format    lay out the C files'
	@echo 'make docs      write docs/options.md and docs/metrics.md anew from the tables in router/'
	@echo 'make tables    the tables of docs/policy.md anew, and whether they hold (KVROUTE_TRACES names the traces)'
	@echo 'make asan      unit and end-to-end tests under the address and undefined-behaviour sanitizers'
	@echo 'make tsan      unit and end-to-end tests under the thread sanitizer'
	@echo 'make fuzz      every fuzz target for FUZZ_SECONDS (60)'
	@echo 'make bench     micro-benchmarks (`build/kvroute bench` loads a running router)'
	@echo 'make bench-peers   beside nginx and other routers on real engines (installs them; an hour and a half)'
	@echo 'make install   to PREFIX (/usr/local), below DESTDIR; an existing configuration is left alone'
	@echo 'make clean     remove the build directories'
