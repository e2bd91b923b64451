#!/bin/sh
# A mixed load for a long time on each server, everything its clients see checked: soak.sh SECONDS
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

say "the soak, $1 s a server"
DLOCK_SECONDS=$1 cargo test --package dlock-module --test soak a_long_time -- --ignored --nocapture
