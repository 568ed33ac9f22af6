# One command for everything. Needs Python 3.11 or newer and make. Each target sets up .venv with what it needs, once, and
# again whenever pyproject.toml changes. With that in place nothing here needs a network.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Each step uses all cores by itself.
.NOTPARALLEL:
SHELL := /bin/sh

# Seeds of `make sim`, seeds of the simulations inside `make test`, and more arguments for `make demo` and `make bench`.
SEEDS ?= 1000
TEST_SEEDS ?= 150
# The same with users of recipes.
TEST_RECIPE_SEEDS ?= 40
# How topics of simulated clusters are ordered: committed, sequenced, or both (each seed in each way).
ORDERING ?= both
# How long `make sim-nightly` searches.
HOURS ?= 4
ARGS ?=

PY := .venv/bin/python
# Not loadgroup: with it pytest-xdist 3.8 waits for ever once a worker has died, which is how a hanging test ends here.
# One worker more than cores: tests with real processes are mostly waiting.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)
PYTEST := $(PY) -m pytest -n $(WORKERS) --dist worksteal
# What `make check` runs: no servers, no JVM, no story that is cut off at every step.
QUICK := "not process and not spark and not thorough"
# One session for all of them: starting one takes longer than most of them. It leaves half of a machine idle, which the
# simulation uses meanwhile.
SPARK_TESTS := $(PY) -m pytest -p no:xdist -rs -m "spark and not faults" --durations=10
SIM := $(PY) -m varlog.testing.sim
# The seed that showed each planted bug last time: tried first, so that `make test` searches only after a change of that run.
KNOWN := tests/simulation/planted.json

# Another checkout's source must not shadow this one's.
unexport PYTHONPATH
unexport PYTHONHOME

# One stamp per extra of pyproject.toml that is installed. It is named by what it was made from, so that neither a touched file
# nor a moved directory fools it. CORE is enough for `make check`; the others add to it what their targets need.
STAMP := .venv/installed-$(shell (pwd; cat pyproject.toml) | cksum | cut -d ' ' -f 1)-
CORE := $(STAMP)test
ALL := $(STAMP)test-all
BROWSER := $(STAMP)test-browser
ETCD := $(STAMP)test-etcd
PEERS := $(STAMP)test-peers
PLOT := $(STAMP)plot
RELEASE := $(STAMP)release
SPARK := $(STAMP)test-spark
INSTALL := $(PY) -m pip install -q --disable-pip-version-check -e

# Prints how long a little Python takes, in microseconds, if the interpreter fits.
TRIAL := import sys, venv, ensurepip, timeit; sys.exit(1) if sys.version_info < (3, 11) else \
  print(int(1e6 * min(timeit.repeat("f(i)", "f = lambda i: [(j, i) for j in range(9)][-1]; i = 1", repeat=9, number=5000))))

# The same version of Python may be here twice, and one of them faster by a third: pyenv, for one, leaves the compiler's profile out
# unless it is told to use it. Everything here waits for the interpreter, so the faster one is taken; PYTHON takes a certain one.
$(CORE):
	@python=; \
	for candidate in $(or $(PYTHON),python3.11 python3.12 python3.13 python3 python); do \
	  if took=$$($$candidate -c '$(TRIAL)' 2>/dev/null); then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo 'varlog needs Python 3.11 or newer with its venv module, and found none$(if $(PYTHON), in $(PYTHON)).' >&2; \
	  echo 'Install it (Debian, Ubuntu: apt install python3-venv), or name one: make PYTHON=/path/to/python3.11' >&2; \
	  exit 1; \
	fi; \
	version=$$($$python -c 'import sys; print("python3.%d" % sys.version_info[1])'); \
	for other in $(if $(PYTHON),,/usr/bin/$$version /usr/local/bin/$$version); do \
	  if other_took=$$($$other -c '$(TRIAL)' 2>/dev/null) && [ $$((other_took * 6)) -lt $$((took * 5)) ]; \
	  then python=$$other took=$$other_took; fi; \
	done; \
	echo "setting up .venv with $$($$python --version), $$(command -v $$python)"; \
	rm -f .venv/installed-*; \
	$$python -m venv .venv && $(INSTALL) '.[test]'
	@touch $@

# The order alone counts, not which of two stamps is newer.
$(ALL) $(RELEASE): $(STAMP)%: | $(CORE)
	@echo 'adding the extra $* to .venv'
	@$(INSTALL) '.[$*]'
	@touch $@

# These are parts of `test-all`, and not installed twice.
$(BROWSER) $(ETCD) $(PEERS) $(PLOT) $(SPARK): $(STAMP)%: | $(CORE)
	@[ -e $(ALL) ] || { echo 'adding the extra $* to .venv' && $(INSTALL) '.[$*]'; }
	@touch $@

##@ Start here
.PHONY: help venv venv-core demo test test-plan
help: ## this list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

venv: $(ALL) ## set up .venv with everything (every other target sets up what it needs)

venv-core: $(CORE) ## set up .venv with what `make check` needs: without Spark, Java, a browser's driver and servers of others

demo: $(SPARK) $(ETCD) ## a cluster on this machine: append, kill -9, restart, nothing lost
	.venv/bin/varlog demo $(ARGS)

test: $(ALL) test-plan static chromium ## everything: static checks, all tests, a bounded simulation, planted bugs
	$(PYTEST) -rs -m "not faults and not spark"
	@mkdir -p build; echo 'Spark, beside the simulation; what it prints comes at the end'
	@$(SPARK_TESTS) >build/test-spark.txt 2>&1 & spark=$$!; trap 'kill $$spark' INT TERM; \
	{ $(SIM) run --seeds $(TEST_SEEDS) && $(SIM) run --recipes --seeds $(TEST_RECIPE_SEEDS) && \
	  $(SIM) mutants --quick --known $(KNOWN); }; sim=$$?; \
	wait $$spark; code=$$?; cat build/test-spark.txt; [ $$sim -eq 0 ] || exit $$sim; exit $$code

test-plan:
	@echo 'make test: static checks, all tests but the long ones of `make faults`, Spark, $(TEST_SEEDS) seeds per ordering, planted bugs.'
	@echo 'About 14 minutes on two cores, after the first set-up. `make check` takes two.'

##@ While you work
.PHONY: check coverage static format-check lint types fmt codemap requirements reference docs
check: static ## before each commit, under two minutes: static checks, and the tests without real processes
	$(PYTEST) -rs -m $(QUICK)

# Only lines that run in the tests' own process count. What a test starts as another process does not: servers, commands, Spark's workers.
# Everything takes longer while it is measured, so a test that hangs is ended later.
coverage: $(CORE) ## lines that the tests of `make check` run; pages of each file in build/coverage/html
	@mkdir -p build/coverage
	$(PYTEST) -m $(QUICK) -o faulthandler_timeout=1800 --cov --cov-report=term --cov-report=html
	@echo 'not counted: what runs in other processes, and every test marked process, spark or thorough'

static: format-check lint types ## format, lint and types, without running anything

format-check: $(CORE)
	$(PY) -m ruff format --check .

lint: $(CORE) ## lint alone
	$(PY) -m ruff check .

# Files that import what only other extras than `test` install: without those, there are no types to check them against.
BEYOND_CORE := ^(src/varlog/spark/|src/varlog/cli/spark|benchmarks/spark/|tests/spark/|tests/e2e/(browser|test_dashboard))

types: $(CORE) ## types alone; `make venv` first, to check the files that need Spark, a browser or a peer as well
	@if [ -e $(ALL) ]; then echo mypy; $(PY) -m mypy; else \
	  echo 'mypy, without the files that need Spark, a browser or a peer: run `make venv` to check those as well'; \
	  $(PY) -m mypy --follow-imports silent --exclude '$(BEYOND_CORE)' src tests; \
	fi

fmt: $(CORE) ## format, and repair what lint can repair
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

codemap: $(CORE) ## render docs/internals/codemap.md from the modules' docstrings
	$(PY) -m tools.codemap

requirements: $(CORE) ## list in docs/reference/requirements.md which tests prove which rule
	$(PY) -m tools.requirements

reference: $(CORE) ## render docs/reference from the commands, errors, limits, formats, routes, metrics and docstrings
	$(PY) -m tools.reference

# An environment of its own: nothing but this target needs the generator.
docs: build/docs-venv/installed ## build the documents as a site into build/site; a broken link fails
	build/docs-venv/bin/sphinx-build -W --keep-going -q -d build/doctrees docs build/site
	@echo 'open build/site/index.html'

build/docs-venv/installed: pyproject.toml | $(CORE)
	$(PY) -m venv build/docs-venv
	build/docs-venv/bin/python -m pip install -q --disable-pip-version-check \
	  $$($(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

# The tests of the dashboard are the only ones that may be skipped, and only where there is no Chromium and none can be had.
.PHONY: chromium screenshot
chromium: ## install a Chromium for the dashboard's tests, where there is none (needs root and apt-get)
	@for name in $${VARLOG_CHROMIUM:-chromium} chromium-browser google-chrome google-chrome-stable; do \
	  if command -v "$$name" >/dev/null 2>&1; then exit 0; fi; \
	done; \
	echo 'there is no Chromium here: trying apt-get install chromium'; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	  export DEBIAN_FRONTEND=noninteractive; \
	  (apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }) >/dev/null 2>&1 && exit 0; \
	fi; \
	echo '*** NO CHROMIUM: it could not be installed, so THE DASHBOARD IS NOT TESTED on this machine.' >&2; \
	echo '*** Install one (Debian, Ubuntu: apt-get install chromium), or name it: VARLOG_CHROMIUM=/path/to/chromium' >&2

screenshot: $(BROWSER) chromium ## regenerate the pictures of the dashboard in docs/; about two minutes
	VARLOG_SCREENSHOTS=docs $(PY) -m pytest -p no:xdist -rs tests/e2e/test_dashboard_faults.py -k screenshot

##@ Search and measure
.PHONY: sim sim-recipes sim-nightly sim-mutants faults bench bench-faults bench-spark bench-orderings
.PHONY: bench-peers bench-ordering bench-growth bench-compare
sim: $(CORE) ## simulate clusters, one seed a history: make sim SEEDS=1000 ORDERING=sequenced
	$(SIM) run --seeds $(SEEDS) --ordering $(ORDERING)

sim-recipes: $(CORE) ## the same with users of recipes: locks, queues, maps, transactions: make sim-recipes SEEDS=1000
	$(SIM) run --recipes --seeds $(SEEDS) --ordering $(ORDERING)

sim-nightly: $(CORE) ## search new random seeds for hours, failing ones go to sim-failures.txt: make sim-nightly HOURS=4
	$(SIM) nightly --hours $(HOURS)

sim-mutants: $(CORE) ## plant known bugs; the simulator must find each
	$(SIM) mutants --known $(KNOWN) --record

# Two at a time on any machine: each has a cluster and its clients, and is mostly waiting for a fault to pass.
faults: $(ALL) ## real processes under load: kill -9, SIGSTOP, full disks, network cuts, lost disks; about ten minutes
	@rm -rf build/harms
	$(PY) -m pytest -n 2 --dist worksteal tests/faults tests/hardening -m "process" -rs --durations=0 $(ARGS); \
	code=$$?; $(PY) -m varlog.testing.harms.harm_table build/harms docs/internals/harms.md && exit $$code
	$(PY) -m pytest -n 2 --dist worksteal tests/e2e tests/benchmarks -m "faults and not spark" -rs --durations=0 $(ARGS)
	$(PY) -m pytest -p no:xdist -m "spark and faults" tests/spark -rs --durations=0 $(ARGS)

bench: $(CORE) ## measure, against the raw limits of this machine
	.venv/bin/varlog bench $(ARGS)

bench-faults: $(ETCD) ## kill a backup, a primary and the leading repository under load: how long it shows
	$(PY) -m benchmarks.faults $(ARGS)

bench-peers: $(PEERS) ## NATS JetStream, Redis Streams and etcd against varlog, by turns; about 20 minutes; ARGS=--quick for two
	$(PY) -m benchmarks.peers $(ARGS)

bench-spark: $(SPARK) ## Spark on a topic against Spark on Parquet: read, write, stream, audit, memory; about five minutes
	$(PY) -m benchmarks.spark $(ARGS)

bench-orderings: $(ETCD) ## the sequenced ordering against the committed one, in turns: appends, reads, and then faults
	$(PY) -m benchmarks.orderings $(ARGS)
	$(PY) -m benchmarks.faults --ordering both $(ARGS)

bench-ordering: $(PLOT) ## EMULATED: the real repository, thousands of streams on nodes without data; about three minutes
	$(PY) -m benchmarks.ordering.scale $(ARGS)

bench-growth: $(PLOT) ## throughput and latency as streams, topics, appenders, entries, log and readers grow; about ten minutes
	$(PY) -m benchmarks.growth --render $(ARGS)

# Exit code 1: something is worse by more than the rounds differ. BASE is looked at first: setting up takes a minute.
bench-compare: ## two revisions by turns, ratios with their spread: make bench-compare BASE=main ARGS='-w append-64'; six minutes
	@if [ -z '$(BASE)' ]; then \
	  echo 'make bench-compare: name the revision to compare with: make bench-compare BASE=<commit, tag or branch> [AFTER=<other>]' >&2; \
	  exit 2; \
	fi
	@$(MAKE) --no-print-directory $(CORE)
	$(PY) benchmarks/compare.py '$(BASE)' '$(or $(AFTER),.)' $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(ARGS),-- $(ARGS))

##@ Release
.PHONY: dist release-check
dist: $(RELEASE) ## build sdist and wheel in dist/, the wheel out of the sdist, and check what the package index will show
	rm -rf dist
	$(PY) -m build
	$(PY) -m twine check --strict dist/*

# -I: neither this directory nor the environment may lend it anything.
release-check: dist ## install the wheel, without extras, in a new virtual environment, and use it
	rm -rf build/release
	$(PY) -m venv build/release
	build/release/bin/python -m pip install -q --disable-pip-version-check dist/*.whl
	build/release/bin/python -I tests/e2e/wheel_smoke.py
	build/release/bin/varlog --version
	@for name in varlog vsn vmr vmc vseq; do build/release/bin/$$name --help >/dev/null && echo "$$name --help: ok" || exit 1; done

##@ Clean up
.PHONY: clean
clean: ## remove .venv, caches and build outputs; never a data directory
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
