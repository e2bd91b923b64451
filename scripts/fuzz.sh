#!/bin/sh
# Runs each target of fuzz/ for SECONDS, then has real servers load damaged files for SECONDS: fuzz.sh SECONDS
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

limit=${1:-60}
set -- fuzz/fuzz_targets/*.rs
[ -e "$1" ] || fail "there are no targets in fuzz/fuzz_targets"

nightly_with rust-src
if ! cargo fuzz --version >/dev/null 2>&1; then
    say "installing cargo-fuzz"
    cargo install cargo-fuzz --locked
fi
for file in "$@"; do
    target=$(basename "$file" .rs)
    say "$target, $limit s"
    # cargo fuzz stores new inputs in the first folder. The second one is in the repository, and the tests replay it.
    mkdir -p "build/corpus/$target"
    cargo +nightly fuzz run "$target" "build/corpus/$target" "fuzz/corpus/$target" -- -max_total_time="$limit"
done
if command -v go >/dev/null; then
    for target in FuzzMessage FuzzReplies; do
        say "$target of the Go client, $limit s"
        (cd clients/go && go test -run '^$' -fuzz "^$target\$" -fuzztime "${limit}s" .)
    done
fi
say "damaged append only files and snapshots, $limit s"
DLOCK_TEST_SERVERS="redis-7.0=$(redis_server)" DLOCK_SECONDS=$limit \
    cargo test --package dlock-module --test hostile files -- --nocapture
say "$# targets and damaged files: nothing found"
