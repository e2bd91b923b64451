# Sourced by run-quorum.sh, run-cluster.sh and run-sentinel.sh, which run several servers in the foreground until Ctrl-C.
# PORTS: the ports of the servers, in place of the first free ones.
# shellcheck shell=bash

cargo build --release --package dlock-module --package dlock

servers=()
stop_servers() {
    trap - EXIT INT TERM HUP QUIT
    [ ${#servers[@]} -eq 0 ] || kill "${servers[@]}" 2>/dev/null || true
    wait
}
trap stop_servers EXIT
trap 'exit 130' INT TERM HUP QUIT

# A port without an answer is free.
answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Prints so many ports: PORTS, or free ones from FIRST on: take_ports FIRST NUMBER
take_ports() {
    if [ -n "${PORTS:-}" ]; then
        echo "$PORTS"
        return
    fi
    local port=$1 taken=0
    while [ "$taken" -lt "$2" ]; do
        answers "$port" || {
            echo "$port"
            taken=$((taken + 1))
        }
        port=$((port + 1))
    done
}

# Starts a server and waits until it answers: start_server PORT [OPTION...]. Without persistence, so that no lock of the
# last run is still held.
start_server() {
    local port=$1
    local dir=$top/build/run/$port
    shift
    mkdir -p "$dir"
    rm -f "$dir/nodes.conf"
    "$(redis_server)" "$@" --port "$port" --bind 127.0.0.1 --dir "$dir" --logfile log --save '' &
    servers+=($!)
    until answers "$port"; do
        kill -0 "${servers[-1]}" 2>/dev/null || fail "the server on port $port did not start: see $dir/log"
        sleep 0.05
    done
}

# The options of a server with the module. KEgd publishes the events of the module (d), and of commands such as DEL (g),
# to the channel of the key (K) and to that of the event (E).
module=(--appendonly no --notify-keyspace-events KEgd --loadmodule "$top/target/release/libdlock.so")
