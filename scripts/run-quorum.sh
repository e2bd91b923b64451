#!/usr/bin/env bash
# Builds the module and the command, and runs five independent servers in the foreground, on five free ports from 6401: a
# quorum to try.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cargo build --release --package dlock-module --package dlock

servers=()
urls=()
stop() {
    trap - EXIT INT TERM HUP QUIT
    [ ${#servers[@]} -eq 0 ] || kill "${servers[@]}" 2>/dev/null || true
    wait
}
trap stop EXIT
trap 'exit 130' INT TERM HUP QUIT

# A port without an answer is free.
answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

port=6401
for _ in 1 2 3 4 5; do
    while answers "$port"; do port=$((port + 1)); done
    dir=$top/build/run/$port
    mkdir -p "$dir"
    # No persistence, so that no lock of the last run is still held. KEgd publishes the events of the module
    # (d), and of commands such as DEL (g). Each event is sent to the channel of its key (K) and to the
    # channel of its name (E).
    "$(redis_server)" --port "$port" --bind 127.0.0.1 --dir "$dir" --logfile log --save '' --appendonly no \
        --notify-keyspace-events KEgd --loadmodule "$top/target/release/libdlock.so" &
    servers+=($!)
    urls+=("redis://127.0.0.1:$port")
    until answers "$port"; do
        kill -0 "${servers[-1]}" 2>/dev/null || fail "the server on port $port did not start: see $dir/log"
        sleep 0.05
    done
done

url_list=$(IFS=,; echo "${urls[*]}")
cat <<END

Five lock servers are running, process ids ${servers[*]}. In another terminal:

  export PATH="$top/target/release:\$PATH" DLOCK_SERVERS=$url_list
  dlock run --fenced nightly -- sh -c 'echo "fence \$DLOCK_FENCE"; sleep 20'
  dlock inspect nightly

Kill two of them (kill ${servers[0]} ${servers[1]}): locks still work. Kill a third, and they do not. Ctrl-C stops all.

END
wait
