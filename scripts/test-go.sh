#!/bin/sh
# Tests the Go client on the servers of the other tests, as a third party's install finds it: from modules that require
# it by path. Prints one line if Go is missing or too old, and ends well. The arguments go to `go test`. GO_REDIS is the
# version of go-redis, by default the oldest that works.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# From 1.21 on, Go fetches the version that a module asks for.
if ! command -v go >/dev/null || [ "$(go env GOVERSION | sed 's/^go1\.\([0-9]*\).*/\1/')" -lt 21 ]; then
    say "no Go 1.21 or later here: the tests of the Go client are SKIPPED"
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
# Installed by: go install honnef.co/go/tools/cmd/staticcheck@latest
if command -v staticcheck >/dev/null; then
    (cd clients/go && staticcheck ./...)
    (cd clients/go/tests && staticcheck ./...)
fi
(cd clients/go/dlockotel && go vet ./... && go test ./...)
cd clients/go/tests
modules=
if [ -n "${GO_REDIS:-}" ]; then
    mkdir -p "$top/build/go"
    cp go.mod go.sum "$top/build/go"
    modules="-modfile=$top/build/go/go.mod"
    go mod edit -replace "github.com/dlock/dlock/clients/go=$top/clients/go" "$top/build/go/go.mod"
    go get "$modules" "github.com/redis/go-redis/v9@$GO_REDIS"
fi
# The race detector needs a C compiler.
race=
[ "$(go env CGO_ENABLED)" = 0 ] || ! command -v "$(go env CC)" >/dev/null || race=-race
go vet $modules ./...
# On four servers, they take more than Go's own limit of ten minutes.
# shellcheck disable=SC2086 # each is one argument or none
go test -count=1 -timeout 1h $modules $race "$@" ./...
