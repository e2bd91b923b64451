#!/bin/sh
# Runs contrib/fencing/demo.py with a server of its own, which listens on a socket in a temporary folder.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cargo build --release -p dlock-module --lib # not quiet: the first build takes minutes
[ -x target/python/bin/python ] && target/python/bin/python -c 'import dlock' 2>/dev/null || python_client test

folder=$(mktemp -d)
"$(redis_server)" --port 0 --unixsocket "$folder/socket" --save '' --dir "$folder" \
    --loadmodule "${CARGO_TARGET_DIR:-$top/target}/release/libdlock.so" >"$folder/log" 2>&1 &
server=$!
trap 'kill "$server"; wait "$server" || :; rm -rf "$folder"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
until redis-cli -s "$folder/socket" PING >/dev/null 2>&1; do
    kill -0 "$server" 2>/dev/null || fail "the server has ended: $(cat "$folder/log")"
    sleep 0.05
done
target/python/bin/python contrib/fencing/demo.py "unix://$folder/socket"
