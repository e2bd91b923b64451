# The ways into the project. Each target only names a script; what it does and why stands there.
.DEFAULT_GOAL := help
.PHONY: help setup run run-quorum test test-servers soak chaos lint msrv deny fmt miri asan fuzz bench bench-peers stall model clean

# How long fuzz (60) and soak (3600) run.
SECONDS ?=
# How many rounds of faults chaos deals out (200), and from which seed (another one each time).
ROUNDS ?=
SEED ?=

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what is missing: redis-server, a C compiler, libclang
	@scripts/setup.sh

run: setup ## build the module and start a server with it, Ctrl-C ends it (CONF=redis.conf.example, PORT=6379)
	@scripts/run.sh

run-quorum: setup ## build, and start five servers: a quorum to try, Ctrl-C ends them
	@scripts/run-quorum.sh

test: setup ## everything CI checks: format, lints, tests on Redis 7.0 and Valkey 8.0
	@scripts/test.sh

test-servers: setup ## the integration tests, in long forms, on Redis 7.0 and 8, Valkey 8.0 and 9 (DLOCK_ROUNDS=50)
	@scripts/test-servers.sh

soak: setup ## a mixed load for SECONDS=3600 on each server, all that its clients see checked
	@scripts/soak.sh $(or $(SECONDS),3600)

chaos: setup ## a quorum under ROUNDS=200 of faults on each server, all that its clients see checked (SEED deals the same ones)
	@$(if $(SEED),DLOCK_SEED=$(SEED)) scripts/chaos.sh $(or $(ROUNDS),200)

lint: setup ## format, lints and documentation only
	@scripts/lint.sh

msrv: setup ## build with the oldest supported Rust (fetches it)
	@scripts/msrv.sh

deny: ## licences, sources and advisories of the dependencies (installs cargo-deny)
	@scripts/deny.sh

fmt: ## format the code
	@cargo fmt --all

miri: ## the core under Miri (needs nightly, fetches it)
	@scripts/miri.sh

asan: setup ## the integration tests with the module under AddressSanitizer (needs nightly, fetches it)
	@scripts/asan.sh

fuzz: setup ## each fuzz target for SECONDS=60, and damaged files in real servers (needs nightly, fetches it)
	@scripts/fuzz.sh $(or $(SECONDS),60)

bench: setup ## compare its speed with plain SET, scripts and Redisson (ARGS="all --quick", ARGS="contend --only dlock")
	@scripts/bench.sh $(ARGS)

bench-peers: setup ## compare dlock with etcd and ZooKeeper (installs Java and ZooKeeper, fetches etcd)
	@scripts/bench-peers.sh $(ARGS)

stall: setup ## the longest pause when 100,000 of 1,000,000 leases end together
	@scripts/stall.sh

model: ## the larger worlds of the quorum's protocol under the model checker (about 15 minutes)
	@cargo test -p dlock-client --test model -- --ignored --test-threads 1

clean: ## remove everything built and fetched
	@cargo clean
	@rm -rf build
