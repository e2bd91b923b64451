#!/bin/sh
# Measures how fast the module is, on servers that the bench starts. Arguments go to the bench: scripts/bench.sh pairs
# --quick. Without arguments, everything is measured: on Redis 7.0, and what is worth comparing between servers also on
# those that `make test-servers` has fetched.
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
