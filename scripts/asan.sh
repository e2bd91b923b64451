#!/bin/sh
# Runs the integration tests with the module under AddressSanitizer and its leak check. Each server writes its reports into
# its own folder, and the testkit fails a test if its server left a report.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

nightly_with rust-src
runtime=$(cc -print-file-name=libasan.so)
[ -e "$runtime" ] || fail "the C compiler has no libasan.so"
host=$(rustc -vV | sed -n 's/^host: //p')

say "building the module under AddressSanitizer"
# The runtime ignores a leak if a function that lsan.supp names is on the stack of the allocation. It needs frame pointers to
# find the stack, and debug information to find the names.
export CARGO_PROFILE_DEV_DEBUG=full
RUSTFLAGS="-Zsanitizer=address -Cforce-frame-pointers=yes" cargo +nightly build --lib --package dlock-module --target "$host" --target-dir build/asan
unset CARGO_PROFILE_DEV_DEBUG

# The server is not built with the sanitizer, so the runtime is preloaded, and replaces the server's allocator.
# handle_segv=0 leaves crash reports to the server.
export DLOCK_TEST_MODULE="$top/build/asan/$host/debug/libdlock.so"
options="detect_leaks=1:handle_segv=0:log_path={dir}/sanitizer"
leaks="suppressions=$top/scripts/lsan.supp:print_suppressions=0"
export DLOCK_TEST_SERVER_ENV="LD_PRELOAD=$runtime ASAN_OPTIONS=$options LSAN_OPTIONS=$leaks"
DLOCK_TEST_SERVERS="redis-7.0=$(redis_server)"
export DLOCK_TEST_SERVERS
say "integration tests"
# The test that is skipped checks that memory shrinks again, but the sanitizer's allocator retains freed memory.
found=
cargo test --package dlock-module --no-fail-fast -- --skip a_few_seconds_of_mixed_load || found=1
cargo test --package dlock-client --no-fail-fast --test service --test chaos || found=1
[ -z "$found" ] || fail "see above"
say "no reports"
