#!/bin/sh
# Checks the Python and the Node client (types, lints, tests) on Redis 7.0 and Valkey 8.0. PYTHON, REDIS_PY and
# NODE_CLIENTS choose versions (common.sh). DLOCK_SECONDS (default: 10) is the length of each fleet test, in which
# dlock and other lock libraries contend for one key. Installs into target/python, target/node and
# clients/node/node_modules. Passes its arguments to pytest. With arguments, it does not test the Node client.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

prepare_test_servers valkey-8.0
if [ -z "${DLOCK_TEST_MODULE:-}" ]; then
    cargo build -p dlock-module
    export DLOCK_TEST_MODULE="${CARGO_TARGET_DIR:-$top/target}/debug/libdlock.so"
fi
install_test_clients
# The libraries of other event loops, and pyright, which are left out of the quicker suites.
python_client carriers
npm install --silent --no-audit --no-fund --prefix target/node pyright

say "PHP and Ruby, for docs/with-your-client.md"
missing=
php -m 2>/dev/null | grep -q '^redis$' || missing="$missing php-cli php-redis"
ruby -e 'require "redis"' 2>/dev/null || missing="$missing ruby ruby-redis"
# shellcheck disable=SC2086 # the list is meant to be split
[ -z "$missing" ] || install_packages $missing

scripts/lint-clients.sh
# If PHP or Ruby is missing, a test fails instead of being skipped.
export DLOCK_TEST_LANGUAGES=1
for DLOCK_TEST_CLIENT in redis valkey; do
    export DLOCK_TEST_CLIENT
    say "the tests of the Python client, over $DLOCK_TEST_CLIENT-py"
    python_tests "$@"
done
[ $# = 0 ] || exit 0
say "the tests of the Node client"
npm --prefix clients/node test --silent
