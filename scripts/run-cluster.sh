#!/usr/bin/env bash
# Builds the module, and runs a Redis Cluster of three masters in the foreground, on three free ports from 6501: a cluster
# to try.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/run-several.sh
. scripts/run-several.sh

read -r -a ports <<<"$(take_ports 6501 3 | tr '\n' ' ')"
for port in "${ports[@]}"; do
    start_server "$port" "${module[@]}" --cluster-enabled yes --cluster-node-timeout 5000
done

slots=("0 5460" "5461 10922" "10923 16383")
for node in 0 1 2; do
    # shellcheck disable=SC2086 # the first and the last slot
    redis-cli -p "${ports[node]}" CLUSTER ADDSLOTSRANGE ${slots[node]} >/dev/null
    redis-cli -p "${ports[node]}" CLUSTER SET-CONFIG-EPOCH $((node + 1)) >/dev/null
    redis-cli -p "${ports[0]}" CLUSTER MEET 127.0.0.1 "${ports[node]}" >/dev/null
done
for port in "${ports[@]}"; do
    until redis-cli -p "$port" CLUSTER INFO | grep -q '^cluster_state:ok'; do sleep 0.05; done
done

cat <<END

A cluster of three masters is running on the ports ${ports[*]}, process ids ${servers[*]}. In another terminal:

  redis-cli -c -p ${ports[0]} DLOCK.ACQUIRE nightly \$(redis-cli -p ${ports[0]} DLOCK.TOKEN) 60000
  redis-cli -c -p ${ports[0]} DLOCK.INSPECT nightly
  redis-cli -p ${ports[0]} CLUSTER KEYSLOT nightly

Kill one of them (kill ${servers[2]}): the locks of its slots are gone, and the cluster is down until it is back.
Ctrl-C stops all.

END
wait
