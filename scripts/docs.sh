#!/bin/sh
# Writes all documents as offline pages to target/docs/book. Installs mdbook into target/tools if it is missing.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

version=0.5.4
tools=${CARGO_TARGET_DIR:-$top/target}/tools
mdbook=$(command -v mdbook || echo "$tools/bin/mdbook")
if [ ! -x "$mdbook" ]; then
    say "installing mdbook $version"
    cargo install --quiet --locked --no-default-features --features search --root "$tools" "mdbook@$version"
fi
python3 scripts/docs.py "$mdbook" target/docs
say "open target/docs/book/index.html; all on one page: target/docs/book/print.html"
