#!/bin/sh
# The clients in other languages: types, lints and tests, on Redis 7.0 and Valkey 8.0, with the versions that PYTHON,
# REDIS_PY and NODE_CLIENTS choose (common.sh). DLOCK_SECONDS: how long each fleet of old and new clients runs (10). What
# it installs is in target/python, target/node and clients/node/node_modules. Arguments go to pytest: then the Node
# client is left out.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

scripts/fetch-server.sh valkey-8.0
if [ -z "${DLOCK_TEST_MODULE:-}" ]; then
    cargo build -p dlock-module
    DLOCK_TEST_MODULE="${CARGO_TARGET_DIR:-$top/target}/debug/libdlock.so"
fi
: "${DLOCK_TEST_SERVERS:=redis-7.0=$(redis_server),valkey-8.0=$top/build/servers/valkey-8.0/server}"
export DLOCK_TEST_MODULE DLOCK_TEST_SERVERS

say "the Python client"
tools=$top/target/python
python_client test,recipes

say "other libraries' locks, for the fleet of old and new clients"
command -v npm >/dev/null || install_packages nodejs npm
npm install --silent --no-audit --no-fund --prefix target/node redlock@5.0.0-beta.2 ioredis@5
export NODE_PATH="$top/target/node/node_modules"

say "other languages, for docs/with-your-client.md"
missing=
[ -d /usr/share/gocode/src/github.com/gomodule/redigo ] && command -v go >/dev/null ||
    missing="$missing golang-go golang-github-gomodule-redigo-dev"
php -m 2>/dev/null | grep -q '^redis$' || missing="$missing php-cli php-redis"
ruby -e 'require "redis"' 2>/dev/null || missing="$missing ruby ruby-redis"
# shellcheck disable=SC2086 # the list is meant to be split
[ -z "$missing" ] || install_packages $missing

(
    cd clients/python
    "$tools/bin/ruff" check --quiet . ../fleet
    "$tools/bin/ruff" format --check --quiet . ../fleet
    # The types are those of the newest redis-py.
    [ -n "${REDIS_PY:-}" ] || "$tools/bin/mypy"
    "$tools/bin/python" -m pytest -q "$@"
)
[ $# = 0 ] || exit 0

say "the Node client"
unset NODE_PATH
node_client
cd clients/node
npm run --silent lint
npm test --silent
