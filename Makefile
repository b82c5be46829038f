# Everything a person does with a checkout. `make help` lists it.

CARGO ?= cargo
PYTHON := .venv/bin/python
SEEDS ?= 138
REGIONS_SEEDS ?= 12
SCHEDULES ?= 300
FUZZ_SECONDS ?= 60
# Processes that run the end-to-end tests. The tests wait more than they compute.
TEST_PROCESSES ?= 4
# The crates that are published. Their packages are made, and not compiled.
PUBLISHED = $(patsubst crates/%/Cargo.toml,--package lookaside-%,$(shell grep -l '^publish = true' crates/*/Cargo.toml))
# A folder with a trace of Twitter's cache cluster 52; without it, `make hit-ratio` makes a trace from a seed.
TRACES ?=

.PHONY: help up shop test install build lint unit schedules miri simulate end-to-end clients python-backends differential fuzz bench soak chaos staleness recovery delete-latency clean hit-ratio transient qos gutter incast round-trips udp-gets router-floor python-wheel python-clients warmup packets bench-invalidator connections plain-leases reference

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: ## a whole region on this machine, with a demo application; Ctrl-C stops it (UP="..." replaces the options)
	$(CARGO) build --release --package lookaside-server --package lookaside-router --package lookaside-invalidator
	$(CARGO) build --release --package lookaside
	target/release/lookaside up $(or $(UP),--demo)

shop: ## a web shop on a cluster with PostgreSQL, whose pages show what the cache did; Ctrl-C stops it (SHOP="--help")
	$(CARGO) build --release --package lookaside-server --package lookaside-router --package lookaside-invalidator
	$(CARGO) build --release --package lookaside
	$(CARGO) build --release --package lookaside-python
	install -C target/release/lib_lookaside.so python/lookaside/_lookaside.abi3.so
	examples/shop/run $(SHOP)

test: install lint unit schedules simulate end-to-end ## everything that must pass before a change lands

install: ## what the tests need: Debian packages, Python packages in .venv, databases (130 MB into ~/.cache/lookaside-databases)
	tests/install

build:
	$(CARGO) build --workspace --bins --lib --example direct_client --example regional_client
	install -C target/debug/lib_lookaside.so python/lookaside/_lookaside.abi3.so

lint: ## format, lints as errors, documentation as rustdoc reads it, packages of the crates that are published, the arrows of ARCHITECTURE.md, the words of the glossary, links
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked
	$(CARGO) package --quiet --no-verify --allow-dirty --locked $(PUBLISHED)
	$(PYTHON) tests/check_architecture.py
	$(PYTHON) tests/check_test_programs.py
	$(PYTHON) tests/check_words.py
	$(PYTHON) tests/check_links.py
	$(PYTHON) -m ruff check tests experiments python examples
	$(PYTHON) -m ruff format --check tests experiments python examples

unit: ## unit, property and integration tests of every crate
	$(PYTHON) tests/run_unit_tests.py

schedules: ## SCHEDULES interleavings of a few threads on one store, for each scene (shuttle)
	SCHEDULES=$(SCHEDULES) RUSTFLAGS="$(RUSTFLAGS) --cfg shuttle" CARGO_TARGET_DIR=target/shuttle \
		$(CARGO) test --locked --package lookaside-store --test schedules

miri: ## the store's threads under Miri, which sees every unsound access (needs a nightly toolchain with the component miri)
	MIRIFLAGS="-Zmiri-preemption-rate=0.05" $(CARGO) +nightly miri test --locked --package lookaside-store --test races

simulate: build ## SEEDS whole regions, and several regions REGIONS_SEEDS times, under a seeded clock and network
	target/debug/lookaside simulate --seeds $(SEEDS)
	target/debug/lookaside simulate --regions --seeds $(REGIONS_SEEDS)

end-to-end: build ## the built binaries with real clients, a real MariaDB, MySQL and PostgreSQL
	$(PYTHON) -m pytest tests -n $(TEST_PROCESSES) --dist worksteal

clients: install build ## real clients of eight languages, and the programs of docs/clients; installs the toolchains they need
	tests/clients/install
	LOOKASIDE_CLIENTS=all $(PYTHON) -m pytest tests/clients

python-backends: install build ## the cache backends of the Python client, with the tests of caches that Django 4.2 and 5.2 and dogpile.cache are published with
	LOOKASIDE_PYTHON_BACKENDS=all $(PYTHON) -m pytest tests/python/backends -n $(TEST_PROCESSES) --dist worksteal

differential: install build ## the same random requests to memcached 1.6.45 (fetched) and to ours, byte by byte
	LOOKASIDE_MEMCACHED="$$(experiments/peers memcached)" $(PYTHON) -m pytest tests/differential

reference: build ## docs/reference, from what the built programs print
	$(PYTHON) tests/generate_reference.py

soak: build ## many more simulated regions, schedules and exchanges of sessions than `make test` has time for, a million rows in a transaction, hundreds of seeds of row rules, staleness, and half an hour of chaos
	$(CARGO) build --release --package lookaside
	target/release/lookaside simulate --seeds 20000
	target/release/lookaside simulate --regions --seeds 5000
	$(MAKE) schedules SCHEDULES=20000
	EXCHANGE_CASES=200000 $(CARGO) test --release --locked --package lookaside-server --test session
	EXCHANGE_CASES=200000 $(CARGO) test --release --locked --package lookaside-router --test exchange
	LOOKASIDE_SOAK=1 $(PYTHON) -m pytest tests/test_invalidator_faults.py -k many
	LOOKASIDE_SOAK=1 $(PYTHON) -m pytest tests/test_row_rules.py -k random
	LOOKASIDE_SOAK=1 $(PYTHON) -m pytest tests/test_row_statements.py -k rows
	$(MAKE) staleness
	$(MAKE) staleness STALENESS="--database mysql"
	$(MAKE) staleness STALENESS="--database postgres"
	$(MAKE) chaos CHAOS="--seconds 600 --routers 3"
	$(MAKE) chaos CHAOS="--seconds 600 --routers 3 --resize"
	$(MAKE) chaos CHAOS="--seconds 600 --routers 3 --resize --history etcd"

chaos: install build ## real processes and a MariaDB under a seeded schedule of faults; every read is checked (CHAOS="--help" lists the options)
	PYTHONPATH=tests:. $(PYTHON) -m chaos $(CHAOS)

staleness: install ## for how long old values are read while a process hangs or is dead, drawn; fails if above a second (four minutes; STALENESS="--database postgres")
	$(CARGO) build --release --locked --package lookaside-server --package lookaside-router --package lookaside-invalidator --package lookaside
	LOOKASIDE_PROGRAMS=target/release PYTHONPATH=tests:. $(PYTHON) -m experiments.region.staleness --check $(STALENESS)

recovery: install ## the time from the end of each fault of the invalidator's tests until no cached value is old, by database, drawn; writes docs/measurements/recovery.md (fifteen minutes; RECOVERY="--full" has a million rows in a transaction, too)
	$(CARGO) build --release --locked --package lookaside-server --package lookaside-router --package lookaside-invalidator --package lookaside
	LOOKASIDE_PROGRAMS=$(CURDIR)/target/release PYTHONPATH=tests:. $(PYTHON) -m experiments.region.recovery $(RECOVERY)

delete-latency: install ## figure 11 of the paper: old values after deletes in two regions while processes fail, drawn (nine minutes; DELETES="--seconds 60 --seed 7")
	$(CARGO) build --release --locked --package lookaside-server --package lookaside-router --package lookaside-invalidator --package lookaside-monitor --package lookaside
	LOOKASIDE_PROGRAMS=target/release PYTHONPATH=tests:. $(PYTHON) -m experiments.cross_region.delete_latency $(or $(DELETES),--report)

fuzz: ## every fuzz target for FUZZ_SECONDS (needs a nightly toolchain and cargo-fuzz)
	crates/protocol/fuzz/run $(FUZZ_SECONDS)
	crates/server/fuzz/run $(FUZZ_SECONDS)
	crates/router/fuzz/run $(FUZZ_SECONDS)

bench: install ## ratios against memcached in one run, written to docs/measurements/benchmarks.md (BENCH=--full takes longer)
	experiments/run $(BENCH)

hit-ratio: install ## miss ratios against memcached at equal memory (HIT_RATIO="--full --report" takes 30 minutes, writes docs/measurements/hit_ratio.md; TRACES=FOLDER has a real trace)
	TRACES="$(TRACES)" experiments/run hit_ratio $(HIT_RATIO)

transient: install ## a short-lived family's share of a full server over time, drawn
	experiments/run transient

qos: install ## throughput with p99 under 1 ms by number of connections, ours and memcached's, drawn; writes docs/measurements/qos.md (QOS="--full")
	experiments/run qos $(QOS)

router-floor: install ## what a proxy costs at least: bare proxies in three event loops beside the router; writes docs/measurements/router_floor.md (five minutes)
	experiments/run router_floor --report $(ROUTER_FLOOR)

gutter: install ## a dead server under load with MariaDB behind, with and without a gutter, drawn (four minutes)
	$(CARGO) build --release --locked --package lookaside-server --package lookaside-router
	LOOKASIDE_PROGRAMS=target/release PYTHONPATH=tests:. $(PYTHON) -m experiments.cluster.gutter

incast: install ## time of a page by size of the window over a congested link, drawn (as root; three minutes)
	$(CARGO) build --release --locked --package lookaside-server --package lookaside-router
	$(CARGO) build --release --locked --package lookaside-workload --example page_arrivals
	LOOKASIDE_PROGRAMS=target/release PYTHONPATH=tests:. $(PYTHON) -m experiments.cluster.incast target/release/examples/page_arrivals

round-trips: install ## round trips and time of pages, with and without a plan (a minute)
	$(CARGO) build --release --locked --package lookaside-server
	$(CARGO) build --release --locked --package lookaside-workload --example pages
	LOOKASIDE_PROGRAMS=target/release PYTHONPATH=tests:. $(PYTHON) -m experiments.cluster.round_trips target/release/examples/pages

udp-gets: install ## latency and processor time of gets by UDP, by TCP, and through a router (two minutes)
	$(CARGO) build --release --locked --package lookaside-server --package lookaside-router
	$(CARGO) build --release --locked --package lookaside-workload --example udp_gets
	LOOKASIDE_PROGRAMS=target/release PYTHONPATH=tests:. $(PYTHON) -m experiments.cluster.udp_gets target/release/examples/udp_gets

python-wheel: install ## a wheel of the Python client for Python 3.10 and later, in target/wheels
	$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir target/wheels ./python

python-clients: install ## the Python client beside five others, and two for asyncio, in one run; writes docs/measurements/python_clients.md (two minutes)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r experiments/clients/requirements.txt
	$(CARGO) build --release --locked --package lookaside-server --package lookaside-router
	$(CARGO) build --release --locked --package lookaside-python
	install -C target/release/lib_lookaside.so python/lookaside/_lookaside.abi3.so
	LOOKASIDE_PROGRAMS=target/release PYTHONPATH=tests:. $(PYTHON) -m experiments.clients.python_clients --report

warmup: install ## a cold cluster with MariaDB behind, with and without warm-up, drawn; counts stale reads (five minutes)
	$(CARGO) build --release --locked --package lookaside-server --package lookaside-router
	LOOKASIDE_PROGRAMS=target/release PYTHONPATH=tests:. $(PYTHON) -m experiments.region.warmup

plain-leases: install ## stale sets of clients that know no leases, with and without the router's leases (five minutes; after make clients)
	$(CARGO) build --release --locked --package lookaside-server --package lookaside-router
	LOOKASIDE_PROGRAMS=target/release PYTHONPATH=tests:. $(PYTHON) -m experiments.cluster.plain_leases

packets: install ## packets of deletes beside those of each delete by itself, at several rates (as root; two minutes)
	$(CARGO) build --release --locked --package lookaside-server --package lookaside-router --package lookaside-invalidator
	LOOKASIDE_PROGRAMS=target/release PYTHONPATH=tests:. $(PYTHON) -m experiments.region.delete_packets --report

bench-invalidator: install ## the invalidator's rate against each database's own reader, its memory while a cluster is down, commit to empty; fails if a bar is missed (eight minutes)
	$(CARGO) build --release --locked --package lookaside-server --package lookaside-router --package lookaside-invalidator --package lookaside
	LOOKASIDE_PROGRAMS=target/release PYTHONPATH=tests:. $(PYTHON) -m experiments.region.invalidator_rate --report --check

connections: install ## up to 10,000 client connections of a router: memory, connections to the servers, latency; against peers
	experiments/run connections $(CONNECTIONS)

clean:
	$(CARGO) clean
