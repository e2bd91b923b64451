#!/bin/sh
# Runs a quorum, a cluster and a Sentinel deployment of Redis servers, and of Valkey servers, under faults. Checks every
# answer that the clients get: chaos.sh ROUNDS [TEST]. Python, Node and Go clients and the command lock beside the Rust
# clients. TEST is a part of the names of the tests to run (failovers:: for the cluster and Sentinel).
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
cargo build --package dlock
export DLOCK_COMMAND="${CARGO_TARGET_DIR:-$top/target}/debug/dlock"
export DLOCK_CHAOS_FAILOVERS="$DLOCK_CHAOS_CLIENTS;$python command"
if command -v go >/dev/null; then
    (cd clients/go/tests && go build -o "$top/target/go/contender" ./contender)
    export DLOCK_CHAOS_SINGLE="$top/target/go/contender go-redis"
    DLOCK_CHAOS_FAILOVERS="$DLOCK_CHAOS_FAILOVERS;$DLOCK_CHAOS_SINGLE"
fi

say "chaos, $1 rounds of faults with Redis and with Valkey"
# shellcheck disable=SC2086 # the name is one argument or none
DLOCK_ROUNDS=$1 cargo test --package dlock-client --test chaos ${2:-} -- --ignored --nocapture
[ -z "${2:-}" ] || exit 0

say "chaos, the Go client"
DLOCK_SECONDS=$1 scripts/test-go.sh -run Histories -timeout 0
