#!/bin/sh
# Compares dlock with the lock libraries of Go, Java, Python and Node on one server: bench-peers.sh [--quick]
# [--only go,java]. Fetches the libraries. Leaves out the languages that are not installed, and says so.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

out=$top/target/peers
peers=$top/crates/bench/peers
cargo build --release --package dlock-module
python_client
if command -v go >/dev/null; then
    (cd clients/go/tests/bench && go build -o "$out/go" .)
fi
if command -v java >/dev/null && command -v mvn >/dev/null; then
    mvn --quiet --batch-mode --file "$peers/java/pom.xml" "-Dout=$out/java" compile dependency:copy-dependencies
fi
if command -v npm >/dev/null; then
    node_client
    npm install --silent --no-audit --no-fund --prefix "$out/node" redlock@5.0.0-beta.2 ioredis@5 "$top/clients/node"
    # Node looks for packages in the folder of the program.
    cp "$peers/node.mjs" "$out/node/"
fi
exec target/python/bin/python "$peers/peers.py" "$@" "$(redis_server)" "$top/target/release/libdlock.so"
