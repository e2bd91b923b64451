#!/bin/sh
# Measures the speed of the module on servers that the bench starts: bench.sh [ARGUMENT...], for example pairs --quick
#
# `clients [--quick] [--only holds,node]` counts what many holds and waits cost in the clients. Other arguments go to the
# bench; without arguments it measures everything else. All measurements run on Redis 7.0. The ones
# named pairs, memory and instructions also run on Redis 8 and Valkey 9, if `make test-servers` has fetched them.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cargo build --release --package dlock-module --package dlock-bench
if [ "${1:-}" = clients ]; then
    shift
    python_client
    node_client
    npm install --silent --no-audit --no-fund --prefix target/peers/node ioredis@5 "$top/clients/node"
    # Node looks for packages in the folder of the program.
    cp crates/bench/clients/node.mjs target/peers/node/clients.mjs
    set -- "$@" "$(redis_server)" "$top/target/release/libdlock.so" "$top/target/release/dlock-bench-client"
    if command -v go >/dev/null; then
        (cd clients/go/tests && go build -o "$top/target/go/many" ./many)
        set -- "$@" "$top/target/go/many"
    fi
    exec target/python/bin/python crates/bench/clients/clients.py "$@"
fi
[ $# -gt 0 ] || set -- all
set -- "$@" --server "$(redis_server)"
for name in redis-8 valkey-9; do
    if [ -x "build/servers/$name/server" ]; then
        set -- "$@" --server "build/servers/$name/server"
    fi
done
exec target/release/dlock-bench "$@"
