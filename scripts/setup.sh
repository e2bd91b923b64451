#!/bin/sh
# Installs the missing tools for the build and the tests. Prints nothing if all are present.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

has_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] && return 0
    # Not libclang-cpp.so, which other tools install and which does not help here.
    for folder in /usr/lib/llvm-*/lib /usr/lib/*-linux-gnu; do
        for library in "$folder"/libclang.so* "$folder"/libclang-[0-9]*.so*; do
            [ -e "$library" ] && return 0
        done
    done
    return 1
}

# The package redis-tools contains the server: redis-check-rdb is the server's program, which checks RDB files only under
# that name. Under the name of the link below, it is a server. The package redis-server is not installed: it adds a
# service, which would start now and at each boot, on the port on which users want to try dlock.
missing=
command -v cc >/dev/null && [ -e /usr/include/stdio.h ] || missing="$missing gcc libc6-dev"
has_libclang || missing="$missing libclang-dev"
command -v redis-cli >/dev/null && [ -x /usr/bin/redis-check-rdb ] || missing="$missing redis-tools"
# For scripts/imports.py.
command -v python3 >/dev/null || missing="$missing python3-minimal"

# shellcheck disable=SC2086 # the list is meant to be split
[ -z "$missing" ] || install_packages $missing

if [ ! -x /usr/bin/redis-server ] && [ ! -e build/servers/redis-7.0/server ]; then
    mkdir -p build/servers/redis-7.0
    ln -s /usr/bin/redis-check-rdb build/servers/redis-7.0/server
fi

version=$("$(redis_server)" --version | sed -n 's/.* v=\([0-9]*\)\..*/\1/p')
[ "${version:-0}" -ge 7 ] || fail "$(redis_server) is too old: dlock needs Redis 7.0"

for tool in rustfmt clippy; do
    case $tool in
        rustfmt) cargo fmt --version ;;
        clippy) cargo clippy --version ;;
    esac >/dev/null 2>&1 || rustup component add "$tool"
done
