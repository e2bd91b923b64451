#!/bin/sh
# Runs the integration tests on every supported server. DLOCK_ROUNDS (default 50) is the number of rounds of
# each test with random faults. DLOCK_RESTARTS (default 100) is the number of restarts with the clock set
# back.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# Sets DLOCK_TEST_SERVERS to Debian's Redis 7.0 and these servers.
prepare_test_servers valkey-8.0 redis-8 valkey-9
export DLOCK_ROUNDS="${DLOCK_ROUNDS:-50}" DLOCK_RESTARTS="${DLOCK_RESTARTS:-100}"
say "the module"
# The tests would also build the module, but would not show the compiler's output.
cargo build --package dlock-module
say "integration tests (DLOCK_ROUNDS=$DLOCK_ROUNDS)"
cargo test --package dlock-module --package dlock
cargo test --package dlock-client --test service --test chaos
say "all is well"
