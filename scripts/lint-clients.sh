#!/bin/sh
# Checks the format, lints and types of the Python and the Node client, and the format and lints of
# clients/fleet.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

[ -x target/python/bin/ruff ] || python_client test,recipes
[ -d clients/node/node_modules ] || node_client
say "format, lints and types of the Python client"
(
    tools=$top/target/python/bin
    cd clients/python
    "$tools/ruff" check --quiet . ../fleet
    "$tools/ruff" format --check --quiet . ../fleet
    # REDIS_PY chooses an older redis-py, which is not typed throughout.
    [ -n "${REDIS_PY:-}" ] || "$tools/mypy"
)
say "format, lints and types of the Node client"
cd clients/node
npm run --silent lint
npm run --silent build
