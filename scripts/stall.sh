#!/bin/sh
# The longest that a client waits while 100,000 of 1,000,000 leases end together, on each server.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cargo test --release --package dlock-module --test soak stall:: -- --ignored --nocapture
