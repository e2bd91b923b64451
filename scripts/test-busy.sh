#!/bin/sh
# Runs every suite of `make test` ROUNDS times beside two busy loops: test-busy.sh ROUNDS [SUITE...]
#
# A test that fails here depends on the speed of the machine: find the cause, never repeat the test.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

prepare_test_servers valkey-8.0
install_test_clients
say "building the module and the tests"
# The bench has no tests.
cargo build --workspace --exclude dlock-bench --all-targets
export DLOCK_TEST_MODULE="${CARGO_TARGET_DIR:-$top/target}/debug/libdlock.so"
# Most tests wait for servers most of the time.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(($(nproc) * 3))}"
cargo test --workspace --exclude dlock-bench --no-run --quiet --message-format json |
    python3 scripts/test-busy.py "$@"
