#!/bin/sh
# Runs the suites of `make test` ROUNDS times beside two busy loops: test-busy.sh ROUNDS [SUITE...]
#
# A test that fails here depends on the speed of the machine: find the cause, never repeat the test.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

prepare_test_servers valkey-8.0
build_tests
rounds=$1
shift
python3 scripts/suites.py --busy --rounds "$rounds" "$@" <build/suites/programs.json
