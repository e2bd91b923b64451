#!/bin/sh
# The clients in other languages: types, lints and tests, on Redis 7.0 and Valkey 8.0. PYTHON chooses the interpreter
# (python3), REDIS_PY what pip installs (redis, the newest), NODE_CLIENTS what npm installs ("ioredis@6 redis@4").
# DLOCK_SECONDS: how long each fleet of old and new clients runs (10). What it installs is in target/python, target/node
# and clients/node/node_modules. Arguments go to pytest: then the Node client is left out.
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
"${PYTHON:-python3}" -c 'import ensurepip' 2>/dev/null || install_packages python3-venv
[ -x "$tools/bin/python" ] || "${PYTHON:-python3}" -m venv "$tools"
"$tools/bin/python" -m pip install -q --disable-pip-version-check "${REDIS_PY:-redis}" -e 'clients/python[test,recipes]'

say "other libraries' locks, for the fleet of old and new clients"
# Debian's package of npm needs that of node.
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
cd clients/node
# Not `npm ci`: the lock file names the linter's program for this platform only.
# shellcheck disable=SC2086 # the list is meant to be split
npm install --no-save --ignore-scripts --no-audit --no-fund --loglevel=error ${NODE_CLIENTS:-}
npm run --silent build
npm run --silent lint
npm test --silent
