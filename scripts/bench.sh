#!/bin/sh
# How fast the module is beside what one has without it, on servers of the bench's own. Arguments go to the bench:
# scripts/bench.sh pairs --quick. Without any, everything is measured.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cargo build --release --package dlock --package dlock-bench
[ $# -gt 0 ] || set -- all
exec target/release/dlock-bench "$@" --server "$(redis_server)"
