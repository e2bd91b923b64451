#!/bin/sh
# Checks the format, lints, and runs the tests in Rust, Python and Node, on Redis 7.0 and Valkey 8.0. CI runs this script.
#
# Everything is built before the first test starts: a test with a deadline never runs beside a compiler. Other versions of
# the clients' libraries, and the programs in Go, PHP and Ruby, are tested by `make test-clients`.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

target=${CARGO_TARGET_DIR:-$top/target}
prepare_test_servers valkey-8.0
scripts/lint.sh --quick
install_test_clients

say "building the workspace, and the release of the module"
# One build of the whole workspace. The bench has no tests: the lints compile it.
cargo build --workspace --exclude dlock-bench --all-targets
cargo build --release --package dlock-module --lib
scripts/lint.sh --slow

export DLOCK_TEST_MODULE="${DLOCK_TEST_MODULE:-$target/debug/libdlock.so}"
# Most tests wait for servers most of the time.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(($(nproc) * 3))}"
say "the tests in Rust"
cargo test --workspace --exclude dlock-bench
# The tests of the module's release build are marked #[ignore], so the run above leaves them out.
cargo test --workspace --exclude dlock-bench --test documented built:: -- --ignored

say "the tests of the Python and the Node client, side by side"
node_log=$(mktemp)
setsid npm --prefix clients/node test --silent >"$node_log" 2>&1 &
node=$!
trap 'kill -- "-$node" 2>/dev/null || :; rm -f "$node_log"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
failed=
python_tests || failed=" Python"
wait "$node" || failed="$failed Node"
cat "$node_log"
[ -z "$failed" ] || fail "tests of a client failed:$failed"
say "all is well"
