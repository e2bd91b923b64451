# Every command of the project. A target runs a script; the comment at the top of the script explains the command.
.DEFAULT_GOAL := help
.PHONY: help setup run run-quorum run-cluster run-sentinel build install test check test-clients test-servers test-packages test-install \
	test-images test-contrib test-busy soak chaos lint msrv deny fmt miri asan fuzz bench bench-peers stall model fencing demo-fence docs compare pictures dist clean

# How long fuzz (60), soak (3600) and each fleet of test-clients (10) run.
SECONDS ?=
# How many rounds test-busy (10), chaos and fencing (200) run, and from which seed chaos starts (a new one each time).
ROUNDS ?=
SEED ?=
# Which suites test and test-busy run (all).
SUITES ?=

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install missing tools: redis-server, a C compiler, libclang, Python
	@scripts/setup.sh

run: setup ## build, and start a server with the module; Ctrl-C stops it (CONF=redis.conf.example, PORT=6379)
	@scripts/run.sh

run-quorum: setup ## build, and start five servers, a quorum to try; Ctrl-C stops them
	@scripts/run-quorum.sh

run-cluster: setup ## build, and start a cluster of three masters to try; Ctrl-C stops them
	@scripts/run-cluster.sh

run-sentinel: setup ## build, and start a master, a replica and three sentinels to try; Ctrl-C stops them
	@scripts/run-sentinel.sh

test: setup ## the tests in Rust (Redis 7.0, Valkey 8.0), Python, Node and Go (Redis 7.0) (SUITES="module-waiting python")
	@scripts/test.sh $(SUITES)

check: setup ## before a merge: lints, the release build, larger models, longer tests on four servers (CI runs it)
	@scripts/check.sh

test-busy: setup ## the suites of test ROUNDS=10 times beside two busy loops; prints the tests that failed
	@scripts/test-busy.sh $(or $(ROUNDS),10) $(SUITES)

test-clients: setup ## the Python and the Node client, with the versions of redis-py, ioredis .. that you choose; PHP, Ruby
	@$(if $(SECONDS),DLOCK_SECONDS=$(SECONDS)) scripts/test-clients.sh

test-servers: setup ## longer integration tests on Redis 7.0 and 8, Valkey 8.0 and 9 (DLOCK_ROUNDS=50)
	@scripts/test-servers.sh

soak: setup ## a mixed load for SECONDS=3600 on each server; checks every answer
	@scripts/soak.sh $(or $(SECONDS),3600)

chaos: setup ## ROUNDS=200 of faults on a quorum, a cluster and Sentinel, on each server (SEED repeats a run)
	@$(if $(SEED),DLOCK_SEED=$(SEED)) scripts/chaos.sh $(or $(ROUNDS),200)

lint: setup ## format, lints and documentation only
	@scripts/lint.sh

msrv: setup ## build with the oldest supported Rust (fetches it)
	@scripts/msrv.sh

deny: ## licences, sources and advisories of the dependencies (installs cargo-deny)
	@scripts/deny.sh

fmt: ## format the code
	@cargo fmt --all

miri: ## the core under Miri (fetches nightly Rust)
	@scripts/miri.sh

asan: setup ## the integration tests under AddressSanitizer (fetches nightly Rust)
	@scripts/asan.sh

fuzz: setup ## each fuzz target for SECONDS=60, and damaged files in real servers (fetches nightly Rust)
	@scripts/fuzz.sh $(or $(SECONDS),60)

bench: setup ## compare its speed with plain SET and with scripts (ARGS="all --quick", ARGS="contend --only dlock")
	@scripts/bench.sh $(ARGS)

bench-peers: setup ## dlock beside Redisson, redsync, redislock, redis-py, node-redlock (ARGS="--quick --only go,java")
	@scripts/bench-peers.sh $(ARGS)

stall: setup ## the longest pause while 100,000 of 1,000,000 leases expire together
	@scripts/bench.sh stall

model: ## model-check the quorum's protocol and the message of a grant in larger worlds (about 30 minutes)
	@cargo test -p dlock-quorum --test model --test message -- --ignored --test-threads 1

fencing: setup ## stop holders ROUNDS=200 times for each form of contrib/fencing, on each database; what each form costs
	@scripts/fencing.sh $(or $(ROUNDS),200)

demo-fence: setup ## show what a stopped holder does without a fence, and with one (SQLite; the first build takes minutes)
	@scripts/demo-fence.sh

docs: ## offline pages of all documents, with their links checked (installs mdbook)
	@scripts/docs.sh

compare: setup ## try dlock run beside flock, setlock and etcdctl lock (unpacks daemontools and etcd)
	@scripts/compare.sh

pictures: setup ## record the moving pictures of docs/ anew (installs tmux)
	@scripts/pictures.sh

build: setup ## build the module and the command (target/release)
	@cargo build --release --locked -p dlock-module -p dlock

install: ## build and install the module and the command: PREFIX=/usr/local; with sudo, after `make build`
	@PREFIX=$(or $(PREFIX),/usr/local) DESTDIR=$(DESTDIR) scripts/install.sh

dist: setup ## make a tarball, Debian packages, a wheel, an SBOM and checksums (target/dist)
	@scripts/dist.sh

test-packages: ## install, upgrade and remove the packages in a Debian of its own (as root; fetches Debian)
	@scripts/test-packages.sh

test-install: ## docs/install.md on a bare Debian, each command as written (as root; ports 6379, 9090, 9736)
	@scripts/test-install.sh

test-images: ## build the container images, and run them as the Kubernetes example does (as root; fetches Debian)
	@scripts/test-images.sh

test-contrib: ## each alert fires in a real Prometheus; dashboard, containers and units are checked (fetches Prometheus)
	@scripts/test-contrib.sh

clean: ## remove everything built and fetched
	@cargo clean
	@rm -rf build
