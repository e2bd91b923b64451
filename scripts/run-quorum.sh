#!/usr/bin/env bash
# Builds the module and the command, and runs five independent servers in the foreground, on five free ports from 6401: a
# quorum to try.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/run-several.sh
. scripts/run-several.sh

urls=()
for port in $(take_ports 6401 5); do
    start_server "$port" "${module[@]}"
    urls+=("redis://127.0.0.1:$port")
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
