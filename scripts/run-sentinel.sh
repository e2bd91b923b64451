#!/usr/bin/env bash
# Builds the module, and runs a master, a replica and three sentinels in the foreground, on five free ports from 6601: a
# failover to try. The name of the master is dlock.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/run-several.sh
. scripts/run-several.sh

read -r -a ports <<<"$(take_ports 6601 5 | tr '\n' ' ')"
master=${ports[0]} replica=${ports[1]} sentinels=("${ports[@]:2}")
start_server "$master" "${module[@]}"
start_server "$replica" "${module[@]}" --replicaof 127.0.0.1 "$master"
until redis-cli -p "$replica" INFO replication | grep -q '^master_link_status:up'; do sleep 0.05; done
for port in "${sentinels[@]}"; do
    # A sentinel writes what it learns into its configuration.
    config=$top/build/run/sentinel-$port.conf
    mkdir -p "$top/build/run"
    cat >"$config" <<CONFIG
sentinel monitor dlock 127.0.0.1 $master 2
sentinel down-after-milliseconds dlock 2000
sentinel failover-timeout dlock 10000
CONFIG
    start_server "$port" "$config" --sentinel
done
for port in "${sentinels[@]}"; do
    until redis-cli -p "$port" SENTINEL CKQUORUM dlock | grep -q '^OK 3 '; do sleep 0.05; done
    until redis-cli -p "$port" SENTINEL REPLICAS dlock | grep -qx "$replica"; do sleep 0.05; done
done

cat <<END

A master (port $master), a replica (port $replica) and three sentinels (ports ${sentinels[*]}) are running, process ids
${servers[*]}. In another terminal:

  redis-cli -p $master DLOCK.ACQUIRE nightly \$(redis-cli -p $master DLOCK.TOKEN) 60000
  redis-cli -p $replica DLOCK.INSPECT nightly
  redis-cli -p ${sentinels[0]} SENTINEL GET-MASTER-ADDR-BY-NAME dlock

Kill the master (kill ${servers[0]}): some seconds later the replica is the master, and has the hold. Ctrl-C stops all.

END
wait
