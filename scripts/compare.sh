#!/usr/bin/env bash
# Tries dlock run beside flock, setlock and etcdctl lock, point by point, and prints what happened: the table of
# docs/comparison.md. Nothing is installed: the packages of daemontools and etcd are only unpacked. Takes a minute.
set -u
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

peers=$top/build/peers
if [ ! -x "$peers/tools/usr/bin/etcdctl" ]; then
    unpack_packages "$peers/tools" daemontools etcd-client etcd-server
fi
cargo build --quiet --package dlock-module && cargo build --quiet --package dlock || exit

work=$(mktemp -d)
built=${CARGO_TARGET_DIR:-$top/target}/debug
export PATH="$built:$peers/tools/usr/bin:$PATH" ETCDCTL_API=3 ETCDCTL_ENDPOINTS=http://127.0.0.1:23790
export DLOCK_SERVERS=redis://127.0.0.1:23791
cd "$work" || exit
"$(redis_server)" --port 23791 --save '' --loadmodule "$built/libdlock.so" >redis.log 2>&1 &
servers=$!
etcd --data-dir etcd --listen-client-urls http://127.0.0.1:23790 --advertise-client-urls http://127.0.0.1:23790 \
    --listen-peer-urls http://127.0.0.1:23800 --initial-advertise-peer-urls http://127.0.0.1:23800 \
    --initial-cluster default=http://127.0.0.1:23800 >etcd.log 2>&1 &
servers="$servers $!"
# shellcheck disable=SC2064,SC2086 # $servers is meant to be expanded now, and to be split
trap "kill $servers 2>/dev/null; rm -rf '$work'" EXIT
tries=100
until etcdctl get x >/dev/null 2>&1 && redis-cli -p 23791 PING >/dev/null 2>&1; do
    [ $((tries -= 1)) -gt 0 ] || fail "$(cat redis.log etcd.log)"
    sleep 0.1
done

# TOOL_ NAME COMMAND...: runs a command under a lock, with a lease of 3 s where there are leases.
flock_() { exec flock "$@"; }
setlock_() { exec setlock "$@"; }
etcdctl_() { local name=$1; shift; exec etcdctl lock --ttl=3 "$name" -- "$@"; }
dlock_() { local name=$1; shift; exec dlock run --ttl 3s "$name" -- "$@"; }
# now_TOOL NAME COMMAND...: the same without waiting. etcdctl cannot do that.
now_flock() { flock -n "$@"; }
now_setlock() { setlock -n "$@" 2>/dev/null; }
now_etcdctl() { return 255; }
now_dlock() { local name=$1; shift; dlock run --no-wait --quiet "$name" -- "$@"; }
# free TOOL NAME: prints yes if another process gets the lock within 5 s.
free() { (timeout 5 bash -c "$(declare -f "$1_"); $1_ $2 true" 2>/dev/null) && echo yes || echo no; }
# lives FILE: prints yes if the process with the id in FILE runs.
lives() { kill -0 "$(cat "$1")" 2>/dev/null && echo yes || echo no; }
# hold TOOL NAME: runs a command under a lock. Writes the process id of the command to NAME.pid, and sets $runner to the
# process id of the tool.
hold() {
    ("$1_" "$2" sh -c "echo \$\$ >$2.pid; exec sleep 60") 2>/dev/null &
    runner=$!
    until [ -s "$2.pid" ]; do sleep 0.05; done
}
# end NAME: ends what `hold` began.
end() { kill "$(cat "$1.pid")" "$runner" 2>/dev/null; wait "$runner" 2>/dev/null; }

printf '| %s | flock | setlock | etcdctl lock | dlock run |\n|---|---|---|---|---|\n' "tried"
# row TEST TITLE: prints a row of the table. The function TEST gets the name of a tool, and prints what happened.
row() {
    printf '| %s |' "$2"
    for tool in flock setlock etcdctl dlock; do printf ' %s |' "$("$1" $tool 2>/dev/null)"; done
    echo
}

code() { ("$1_" code sh -c 'exit 7'); echo $?; }
taken() { hold "$1" "taken-$1"; "now_$1" "taken-$1" true; echo $?; end "taken-$1"; }
order() {
    hold "$1" "order-$1"
    local waiters=()
    for n in 1 2 3 4 5 6 7 8; do
        ("$1_" "order-$1" sh -c "echo $n >>order-$1.log") &
        waiters+=($!)
        sleep 0.3
    done
    end "order-$1"
    wait "${waiters[@]}"
    tr -d '\n' <"order-$1.log"
}
killed() { hold "$1" "killed-$1"; kill -9 "$runner"; echo "$(free "$1" "killed-$1"), $(lives "killed-$1.pid")"; end "killed-$1"; }
term() { hold "$1" "term-$1"; kill -TERM "$runner"; sleep 1; [ "$(lives "term-$1.pid")" = no ] && echo yes || echo no; end "term-$1"; }
broken() {
    hold "$1" "broken-$1"
    case $1 in
        etcdctl) etcdctl lease revoke "$(etcdctl lease list | tail -1)" >/dev/null ;;
        dlock) dlock break --yes "broken-$1" >/dev/null ;;
        *) rm "broken-$1" ;;
    esac
    echo "$(free "$1" "broken-$1"), $(sleep 1; lives "broken-$1.pid")"
    end "broken-$1"
}
# The process that is left behind sleeps longer than the 5 s for which `free` waits. Its output goes to /dev/null,
# because `row` would otherwise wait until the process ends.
left() { ("$1_" "left-$1" sh -c 'sleep 8 >/dev/null & exit 0'); free "$1" "left-$1"; }
fence() { ("$1_" fence env) | grep -E '^(ETCD_LOCK_REV|DLOCK_FENCE)=' | cut -d= -f1; }

row code "exit code of a command that ends with 7"
row taken "exit code without waiting, if the lock is taken (255: not possible)"
row order "order in which eight waiters get the lock"
row killed "the runner is killed (SIGKILL): does the next one get the lock within 5 s, does the command run on?"
row term "the runner gets SIGTERM: does the command end?"
row broken "the lock is taken away: does the next one get it, does the command run on?"
row left "the command leaves a process behind: does the next one get the lock?"
row fence "a number that rises, for the command to write with its data"
