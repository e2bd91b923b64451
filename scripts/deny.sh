#!/bin/sh
# Checks all dependencies against the rules of deny.toml: licences, sources and known vulnerabilities. Installs
# cargo-deny, which takes minutes to build. `make lint` runs cargo-deny only if it is installed. CI downloads a built one.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cargo deny --version >/dev/null 2>&1 || cargo install cargo-deny --locked
say "licences and sources"
cargo deny --all-features check licenses bans sources
say "advisories"
# Fetches the database of advisories over the network.
cargo deny --all-features check advisories
