#!/bin/sh
# Tests and measures the forms of contrib/fencing (column, triggers, gate) on each database: fencing.sh ROUNDS
#
# In each round, a holder is stopped until its lease has ended, and then continues beside the next holder.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

prepare_test_servers
scripts/fetch-databases.sh
python_client test
if [ -z "${DLOCK_TEST_MODULE:-}" ]; then
    cargo build -p dlock-module
    export DLOCK_TEST_MODULE="${CARGO_TARGET_DIR:-$top/target}/debug/libdlock.so"
fi
DLOCK_FENCING_ROUNDS=$1 python_tests -n 3 tests/test_fencing.py
say "cost: the time of a transaction, in multiples of one without a fence"
target/python/bin/python clients/python/tests/fencing_cost.py
