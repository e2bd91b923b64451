#!/bin/sh
# What CI checks: format, lints, all tests, with real servers of both families.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

scripts/fetch-server.sh valkey-8.0
scripts/lint.sh
say "the module"
# The tests would build it too, but silently.
cargo build --package dlock-module
say "tests"
DLOCK_TEST_SERVERS="redis-7.0=$(redis_server),valkey-8.0=$top/build/servers/valkey-8.0/server"
export DLOCK_TEST_SERVERS
cargo test --workspace
say "the release"
cargo test --package dlock-module --test built -- --ignored
say "all is well"
