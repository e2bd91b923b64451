#!/bin/sh
# What CI checks: format, lints, all tests, with real servers of both families.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

scripts/fetch-server.sh valkey-8.0
scripts/lint.sh
say "the module and the tests"
# In one go, so that what both depend on is built once. The bench has no tests: the lints have compiled it.
cargo build --workspace --exclude dlock-bench --all-targets
export DLOCK_TEST_MODULE="${CARGO_TARGET_DIR:-$top/target}/debug/libdlock.so"
DLOCK_TEST_SERVERS="redis-7.0=$(redis_server),valkey-8.0=$top/build/servers/valkey-8.0/server"
export DLOCK_TEST_SERVERS
# Most of them wait for servers most of the time.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(($(nproc) * 3))}"
say "tests"
nice cargo build --quiet --release --package dlock-module --lib & # for the last of them
release=$!
trap 'kill "$release" 2>/dev/null || :' EXIT
cargo test --workspace --exclude dlock-bench
say "the release"
wait "$release"
cargo test --workspace --exclude dlock-bench --test documented built:: -- --ignored
say "all is well"
