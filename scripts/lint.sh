#!/bin/sh
# Format and lints.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

say "format"
cargo fmt --all --check
say "lints"
cargo clippy --workspace --all-targets -- -D warnings
