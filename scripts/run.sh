#!/usr/bin/env bash
# Builds the module and runs a server with it in the foreground, on the first free port from PORT (6379). With CONF, the
# server uses that configuration, for example redis.conf.example.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cargo build --release

port=${PORT:-6379}
# A port without an answer is free.
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    port=$((port + 1))
done
dir=$top/build/run/$port
mkdir -p "$dir"

# No persistence, so that no lock of the last run is still held. KEgd publishes two kinds of events: those of
# the module (d), and those of generic commands such as DEL (g). The server publishes each on the channel of
# its key (K) and on the channel of its name (E).
options=(--bind 127.0.0.1 --save '' --appendonly no --notify-keyspace-events KEgd
    --loadmodule "$top/target/release/libdlock.so")
if [ -n "${CONF:-}" ]; then
    # The server runs in a folder of its own, where the module's relative path is wrong.
    sed "s|^loadmodule ./|loadmodule $top/|" "$CONF" >"$dir/redis.conf"
    options=()
fi

# In the background: once the server answers, print a command to try, below the server's own output.
(
    until redis-cli -p "$port" PING >/dev/null 2>&1; do
        kill -0 $$ 2>/dev/null || exit 0
        sleep 0.05
    done
    printf '\nA lock server is running on port %s. In another terminal:\n\n' "$port"
    # Not "invoice:42": the first session of README.md needs that lock to be free.
    # shellcheck disable=SC2016 # for the reader's shell
    printf '  redis-cli -p %s DLOCK.ACQUIRE hello $(redis-cli -p %s DLOCK.TOKEN) 30000\n' "$port" "$port"
    if redis-cli -p "$port" INFO dlock | grep -q '^dlock_grace_ms_left:[1-9]'; then
        printf '\nIt may have forgotten holds, and answers GRACE until they have expired. If you know that no client\n'
        printf 'holds a lock here, end the grace period at once:\n\n'
        printf '  redis-cli -p %s CONFIG SET dlock.restart-grace 0\n' "$port"
    fi
    printf '\nCtrl-C ends it.\n\n'
) &

exec "$(redis_server)" ${CONF:+"$dir/redis.conf"} --port "$port" --dir "$dir" "${options[@]}"
