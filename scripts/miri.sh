#!/bin/sh
# The core's tests under Miri, which detects undefined behaviour in the core and in its dependencies. Miri is a hundred
# times slower, so random tests run few cases, and those with long inputs shorten them if cfg!(miri).
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

nightly_with miri rust-src
say "the core under Miri (PROPTEST_CASES=${PROPTEST_CASES:=2})"
export PROPTEST_CASES
# Isolation off lets the tests see PROPTEST_CASES and read their fixtures.
MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-disable-isolation" timeout "${MIRI_LIMIT:-600}" \
    cargo +nightly miri test --package dlock-core --target-dir build/miri ||
    fail "Miri found a problem, or took longer than ${MIRI_LIMIT:-600} s"
