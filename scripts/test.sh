#!/bin/sh
# Format, lints, and the tests in Rust, with real servers of both families. CI runs other targets of make, too.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

scripts/fetch-server.sh valkey-8.0
scripts/lint.sh --quick
say "the module and the tests"
# In one go, so that what both depend on is built once. The bench has no tests: the lints compile it.
cargo build --workspace --exclude dlock-bench --all-targets
export DLOCK_TEST_MODULE="${CARGO_TARGET_DIR:-$top/target}/debug/libdlock.so"
DLOCK_TEST_SERVERS="redis-7.0=$(redis_server),valkey-8.0=$top/build/servers/valkey-8.0/server"
export DLOCK_TEST_SERVERS
# Most of them wait for servers most of the time.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(($(nproc) * 3))}"
say "tests"
# Beside them, what needs a processor and no server: the lints, and the release for the last of the tests. The lints
# have a folder of their own, for two builds in one wait for each other.
lints=$(mktemp)
setsid nice sh -c "CARGO_TARGET_DIR='${CARGO_TARGET_DIR:-$top/target}/lint' scripts/lint.sh &&
    cargo build --quiet --release --package dlock-module --lib" >"$lints" 2>&1 &
beside=$!
trap 'kill -- "-$beside" 2>/dev/null || :; rm -f "$lints"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
cargo test --workspace --exclude dlock-bench
say "format, lints, the release"
wait "$beside" || { cat "$lints" && exit 1; }
cargo test --workspace --exclude dlock-bench --test documented built:: -- --ignored
say "all is well"
