#!/usr/bin/env bash
# Builds the module and runs a server with it in the foreground, on the first free port from 6379 on.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cargo build --release

port=6379
# A port on which nobody answers is free.
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    port=$((port + 1))
done
dir=$top/build/run/$port
mkdir -p "$dir"

# The words to try it come last, below the server's own: wait for it beside it, and give up when it is gone.
(
    until redis-cli -p "$port" PING >/dev/null 2>&1; do
        kill -0 $$ 2>/dev/null || exit 0
        sleep 0.05
    done
    printf '\nA lock server runs on port %s. In another terminal:\n\n' "$port"
    # shellcheck disable=SC2016 # for the reader's shell
    printf '  redis-cli -p %s DLOCK.ACQUIRE invoice:42 $(redis-cli -p %s DLOCK.TOKEN) 30000\n' "$port" "$port"
    printf '\nCtrl-C ends it.\n\n'
) &

# Nothing is kept: what was locked in the last try should not be locked in this one. KEgd: the module's events, and
# the generic DEL with them, by key and by event.
exec "$(redis_server)" --port "$port" --bind 127.0.0.1 --dir "$dir" --save '' --appendonly no \
    --notify-keyspace-events KEgd --loadmodule "$top/target/release/libdlock.so"
