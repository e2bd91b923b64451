#!/bin/sh
# Runs the tests side by side: those in Rust on Redis 7.0 and Valkey 8.0, those in Python, Node and Go on Redis 7.0. With
# DLOCK_TEST_SERVERS, all run on these servers: test.sh [SUITE...]. scripts/suites.py says what a suite is; without one,
# all run.
#
# Lints and the longer forms are in `make check`; other versions of the clients' libraries, and the programs in PHP and
# Ruby, in `make test-clients`.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# A second server doubles the time of these three, and finds what the tests in Rust find there. `make check` has all.
[ -n "${DLOCK_TEST_SERVERS:-}" ] || export DLOCK_OTHER_LANGUAGES_SERVERS="redis-7.0=$(redis_server)"
prepare_test_servers valkey-8.0
build_tests
say "the tests"
python3 scripts/suites.py "$@" <build/suites/programs.json
say "all is well"
