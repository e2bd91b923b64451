#!/usr/bin/env bash
# Records docs/pictures/run.svg and top.svg anew, from a real server and the command.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

command -v tmux >/dev/null || install_packages tmux
cargo build --quiet --package dlock-module
cargo build --quiet --package dlock
built=${CARGO_TARGET_DIR:-$top/target}/debug
port=23792
folder=$(mktemp -d)
# With log-slower-than, `dlock top` shows holds and waits of more than 1.5 s as incidents.
"$(redis_server)" --port $port --dir "$folder" --save '' --notify-keyspace-events Kd --dlock.log-slower-than 1500 \
    --loadmodule "$built/libdlock.so" >/dev/null &
server=$!
trap 'kill $server; rm -rf "$folder"' EXIT
until redis-cli -p $port PING >/dev/null 2>&1; do
    kill -0 $server
    sleep 0.1
done
PATH="$built:$PATH" python3 scripts/pictures.py $port docs/pictures
