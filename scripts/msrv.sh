#!/bin/sh
# Checks all crates with the oldest Rust that Cargo.toml promises (rust-version), without the tests, which may use a newer
# one. Fetches that toolchain.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
[ -n "$version" ] || fail "Cargo.toml names no rust-version"
if ! cargo "+$version" --version >/dev/null 2>&1; then
    say "fetching Rust $version"
    rustup toolchain install "$version" --profile minimal
fi
say "Rust $version"
# In a folder of its own, because another compiler would rebuild everything in target/.
cargo "+$version" check --workspace --locked --target-dir build/msrv
