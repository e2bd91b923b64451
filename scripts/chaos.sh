#!/bin/sh
# A quorum under faults, everything its clients see checked, on each server: chaos.sh ROUNDS
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

say "chaos, $1 rounds of faults a server"
DLOCK_ROUNDS=$1 cargo test --package dlock-client --test chaos -- --ignored --nocapture
