#!/bin/sh
# Each target of fuzz/ in turn: fuzz.sh SECONDS
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

limit=${1:-60}
nightly_with rust-src
if ! cargo fuzz --version >/dev/null 2>&1; then
    say "installing cargo-fuzz"
    cargo install cargo-fuzz --locked
fi
ran=0
for file in fuzz/fuzz_targets/*.rs; do
    [ -e "$file" ] || fail "there are no targets in fuzz/fuzz_targets"
    target=$(basename "$file" .rs)
    say "$target, $limit s"
    cargo +nightly fuzz run "$target" -- -max_total_time="$limit"
    ran=$((ran + 1))
done
say "$ran targets, nothing found"
