#!/bin/sh
# The module's integration tests on every server it is meant for.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

DLOCK_TEST_SERVERS="redis-7.0=$(redis_server)"
for name in valkey-8.0 redis-8 valkey-9; do
    scripts/fetch-server.sh "$name"
    DLOCK_TEST_SERVERS="$DLOCK_TEST_SERVERS,$name=$top/build/servers/$name/server"
done
export DLOCK_TEST_SERVERS
say "the module"
# The tests would build it too, but silently.
cargo build --package dlock
say "integration tests"
cargo test --package dlock --package dlock-cli
say "all is well"
