#!/bin/sh
# Format and lints of everything. --quick: only what needs no build. --slow: only what needs one.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

part=${1:-all}
if [ "$part" != --slow ]; then
    say "format"
    cargo fmt --all --check
    say "comments within 110 columns"
    scripts/columns.sh
    scripts/restrictions.sh
fi
[ "$part" != --quick ] || exit 0

say "lints"
cargo clippy --workspace --all-targets -- -D warnings
say "documentation"
# In two steps: the module's library and the command are both called dlock.
for packages in "--workspace --exclude dlock" "--package dlock"; do
    # shellcheck disable=SC2086 # the words are meant to be split
    RUSTDOCFLAGS="-D warnings" cargo doc $packages --no-deps --document-private-items --quiet
done
scripts/lint-clients.sh
if cargo deny --version >/dev/null 2>&1; then
    say "licences and sources"
    cargo deny --offline --all-features check licenses bans sources
else
    say "licences and sources: not checked here, make deny installs cargo-deny"
fi
