#!/bin/sh
# Runs each block of docs/install.md marked `sh` on a bare Debian, as written, in a folder with the packages of `make
# dist`. Then checks that the installed Prometheus has seen the lock of the Python example. Prints the duration.
set -eu
# shellcheck source=scripts/machine.sh
. "$(dirname "$0")/machine.sh"

dist=${CARGO_TARGET_DIR:-$top/target}/dist
[ -e "$dist/SHA256SUMS" ] || scripts/dist.sh
SHARED_NETWORK=yes
unpack_machine ca-certificates
began=$(date +%s)
boot
cp -R "$dist" "$machine/srv/packages"
# The host's settings for the package index.
[ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$machine/etc/pip.conf"
if [ -n "${SSL_CERT_FILE:-}" ]; then
    cp "$SSL_CERT_FILE" "$machine/etc/ssl/certs/ca-certificates.crt"
fi
{
    echo 'set -eux'
    echo 'cd /srv/packages'
    awk '/^```$/ { on = 0 } on; /^```sh$/ { on = 1 }' docs/install.md
} >"$machine/srv/commands"
# Fewer lines mean that awk no longer finds the blocks of docs/install.md.
[ "$(wc -l <"$machine/srv/commands")" -gt 15 ] || fail "docs/install.md has no commands"
say "the commands of docs/install.md"
inside PIP_INDEX_URL="${PIP_INDEX_URL:-https://pypi.org/simple}" sh /srv/commands
say "waiting until Prometheus has scraped the lock of the Python example"
tries=0
# The first grant is that of `dlock run`, the second that of the Python example.
until inside curl --silent --get --data-urlencode 'query=dlock_grants_total >= 2' http://127.0.0.1:9090/api/v1/query |
    grep '"value"'; do
    tries=$((tries + 1))
    [ $tries -lt 120 ] || fail "Prometheus has not seen two grants"
    sleep 1
done
echo
say "a bare Debian ran all commands in $(($(date +%s) - began)) s"
