#!/bin/sh
# Runs the tests in Rust, Python, Node and Go, on Redis 7.0 and Valkey 8.0 (or on DLOCK_TEST_SERVERS), side by side:
# test.sh [SUITE...]. scripts/suites.py says what a suite is; without one, all run.
#
# Lints and the longer forms are in `make check`; other versions of the clients' libraries, and the programs in PHP and
# Ruby, in `make test-clients`.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

prepare_test_servers valkey-8.0
build_tests
say "the tests"
python3 scripts/suites.py "$@" <build/suites/programs.json
say "all is well"
