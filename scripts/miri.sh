#!/bin/sh
# Runs the core's tests under Miri, which detects undefined behaviour in the core and its dependencies. Miri is a hundred
# times slower, so random tests run few cases, and tests with long inputs shorten them if cfg!(miri).
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

nightly_with miri rust-src
say "the core under Miri (PROPTEST_CASES=${PROPTEST_CASES:=2})"
export PROPTEST_CASES
# Without isolation, the tests can read PROPTEST_CASES and their fixtures.
MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-disable-isolation" timeout "${MIRI_LIMIT:-600}" \
    cargo +nightly miri test --package dlock-core --target-dir build/miri ||
    fail "Miri found a problem, or took longer than ${MIRI_LIMIT:-600} s"
