#!/bin/sh
# Tests the Go client on the servers of the other tests, as a third party's install finds it: from modules that require
# it by path. Prints one line if Go is missing, and ends well. The arguments go to `go test`.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

if ! command -v go >/dev/null; then
    say "no Go here: the tests of the Go client are SKIPPED"
    exit 0
fi
prepare_test_servers valkey-8.0
if [ -z "${DLOCK_TEST_MODULE:-}" ]; then
    cargo build -p dlock-module
    export DLOCK_TEST_MODULE="${CARGO_TARGET_DIR:-$top/target}/debug/libdlock.so"
fi

say "the Go client"
unformatted=$(gofmt -l clients/go)
[ -z "$unformatted" ] || fail "gofmt -w $unformatted"
(cd clients/go && go vet ./... && go test ./...)
(cd clients/go/dlockotel && go vet ./... && go test ./...)
(cd clients/go/tests && go vet ./... && go test -race "$@" ./...)
