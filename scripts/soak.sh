#!/bin/sh
# Runs a mixed load on each server for a long time, and checks every answer that its clients get: soak.sh SECONDS
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

say "the soak, $1 s a server"
DLOCK_SECONDS=$1 cargo test --package dlock-module --test soak -- --ignored --nocapture
