#!/bin/sh
# Each target of fuzz/ in turn: fuzz.sh SECONDS
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
    cargo +nightly fuzz run "$target" -- -max_total_time="$limit"
done
say "$# targets, nothing found"
