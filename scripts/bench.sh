#!/bin/sh
# Measures the speed of the module on servers that the bench starts: bench.sh [ARGUMENT...], for example pairs --quick
#
# The arguments go to the bench; without arguments it measures everything. All measurements run on Redis 7.0. The ones
# named pairs, memory and instructions also run on Redis 8 and Valkey 9, if `make test-servers` has fetched them.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cargo build --release --package dlock-module --package dlock-bench
[ $# -gt 0 ] || set -- all
set -- "$@" --server "$(redis_server)"
for name in redis-8 valkey-9; do
    if [ -x "build/servers/$name/server" ]; then
        set -- "$@" --server "build/servers/$name/server"
    fi
done
exec target/release/dlock-bench "$@"
