#!/bin/sh
# The integration tests on every server the module is meant for, and the long form of those with random faults: each of
# them DLOCK_ROUNDS times, 50 where that is not said, and DLOCK_RESTARTS=100 with the clock set back.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

test_servers valkey-8.0 redis-8 valkey-9
export DLOCK_ROUNDS="${DLOCK_ROUNDS:-50}" DLOCK_RESTARTS="${DLOCK_RESTARTS:-100}"
say "the module"
# The tests would build it too, but silently.
cargo build --package dlock-module
say "integration tests (DLOCK_ROUNDS=$DLOCK_ROUNDS)"
cargo test --package dlock-module --package dlock
cargo test --package dlock-client --test service --test chaos
say "all is well"
