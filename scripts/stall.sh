#!/bin/sh
# Measures the longest wait of a client while 100,000 of 1,000,000 leases expire together, on each server.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cargo test --release --package dlock-module --test soak stall:: -- --ignored --nocapture
