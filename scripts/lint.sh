#!/bin/sh
# Format and lints.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

say "format"
cargo fmt --all --check
say "lints"
cargo clippy --workspace --all-targets -- -D warnings
"$(dirname "$0")/onlys.sh"
say "comments within 110 columns"
scripts/columns.sh
say "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --quiet
if cargo deny --version >/dev/null 2>&1; then
    say "licences and sources"
    cargo deny --offline --all-features check licenses bans sources
else
    say "licences and sources: not checked here, make deny installs cargo-deny"
fi
