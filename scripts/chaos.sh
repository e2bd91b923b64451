#!/bin/sh
# Runs a quorum of Redis servers, and one of Valkey servers, under faults. Checks every answer that the clients get:
# chaos.sh ROUNDS. Python, Node and Go clients lock beside the Rust clients.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

say "the Python and the Node client"
python_client test
node_client
fleet=$top/clients/fleet/contender
python="$top/target/python/bin/python $fleet.py"
node="node $fleet.js"
export DLOCK_CHAOS_CLIENTS="$python threads;$python asyncio;$node ioredis;$node node-redis"

# The Go client supports no quorum.
if command -v go >/dev/null; then
    (cd clients/go/tests && go build -o "$top/target/go/contender" ./contender)
    export DLOCK_CHAOS_SINGLE="$top/target/go/contender go-redis"
fi

say "chaos, $1 rounds of faults with Redis and with Valkey"
DLOCK_ROUNDS=$1 cargo test --package dlock-client --test chaos -- --ignored --nocapture

say "chaos, the Go client"
DLOCK_SECONDS=$1 scripts/test-go.sh -run Histories -timeout 0
