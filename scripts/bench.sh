#!/bin/sh
# Commands per second of the module, and of SET NX PX and DEL beside them on the same server: the lock one has without it.
# They take turns, since a busy machine changes from minute to minute.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cargo build --release

dir=$(mktemp -d)
server=
trap 'kill "$server" 2>/dev/null && wait "$server" || true; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"$(redis_server)" --port 0 --unixsocket "$dir/socket" --dir "$dir" --save '' \
    --loadmodule "$top/target/release/libdlock.so" >"$dir/log" &
server=$!
until redis-cli -s "$dir/socket" PING >/dev/null 2>&1; do
    kill -0 "$server" 2>/dev/null || {
        cat "$dir/log" >&2
        fail "the server did not start"
    }
    sleep 0.05
done

# measure PIPELINE COMMAND...: on random keys of a million, nearly each of which is met for the first time.
measure() {
    pipeline=$1
    shift
    redis-benchmark -s "$dir/socket" -n "${COUNT:-200000}" -r 1000000 -c 50 -P "$pipeline" -q "$@" |
        tr '\r' '\n' | sed -n "s/^.*: \([0-9.]* requests per second.*\)/  $1, pipeline $pipeline: \1/p"
}
for pipeline in 1 32; do
    for round in 1 2 3; do
        say "round $round"
        measure "$pipeline" SET lock:__rand_int__ token NX PX 30000
        measure "$pipeline" DEL lock:__rand_int__
        redis-cli -s "$dir/socket" FLUSHALL >/dev/null
        measure "$pipeline" DLOCK.ACQUIRE lock:__rand_int__ token 30000
        measure "$pipeline" DLOCK.RELEASE lock:__rand_int__ token
        redis-cli -s "$dir/socket" FLUSHALL >/dev/null
    done
done
