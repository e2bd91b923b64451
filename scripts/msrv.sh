#!/bin/sh
# Checks the module, the client and the command with the oldest Rust that Cargo.toml promises (rust-version). Not the
# tests, which may use a newer one. Fetches that toolchain.
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
# A folder of its own: another compiler in target/ would rebuild everything there.
cargo "+$version" check --workspace --locked --target-dir build/msrv
