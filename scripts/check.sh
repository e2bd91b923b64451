#!/bin/sh
# What must be well before a change is merged; CI runs this script. Lints, the test of the release build, the larger
# worlds of the model checker, failovers under clients of all languages, and `make test` in its longer form: on Redis 7.0
# and 8, Valkey 8.0 and 9, random tests DLOCK_ROUNDS times (default 20) and with DLOCK_RESTARTS restarts (default 25).
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

scripts/lint.sh --quick
prepare_test_servers valkey-8.0 redis-8 valkey-9
export DLOCK_ROUNDS="${DLOCK_ROUNDS:-20}" DLOCK_RESTARTS="${DLOCK_RESTARTS:-25}"
scripts/test.sh
scripts/lint.sh --slow
scripts/chaos.sh 5 failovers::
say "the release build"
cargo test --package dlock-module --test documented built:: -- --ignored
say "the model checker, larger worlds"
cargo test --package dlock-quorum --test model larger:: -- --ignored
say "all is well"
