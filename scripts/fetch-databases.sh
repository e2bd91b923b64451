#!/bin/sh
# Unpacks PostgreSQL, PgBouncer and MariaDB into build/databases, without installing them: no service starts. They come
# from the machine's Debian mirror, with those of their dependencies that the machine lacks.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

home=$top/build/databases
# The folder is moved into place as a whole, so one of the programs shows that all are there.
[ ! -x "$home/usr/sbin/pgbouncer" ] || exit 0

as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
# An old package list has versions that the mirror no longer has.
$as_root apt-get update -qq -o Acquire::Retries=3 || fail "apt-get update failed"
# Debian's package "postgresql" depends on the package of its version, such as postgresql-15.
postgresql=$(apt-cache depends postgresql | sed -n 's/.*Depends: \(postgresql-[0-9]*\)$/\1/p' | head -n 1)
[ -n "$postgresql" ] || fail "apt knows no package postgresql-NN"
wanted="$postgresql postgresql-client-${postgresql#postgresql-} mariadb-server-core mariadb-client-core pgbouncer"
# shellcheck disable=SC2086 # the list is meant to be split
simulated=$(apt-get install -s --no-install-recommends $wanted) || fail "apt-get cannot install: $wanted"
missing=$(printf '%s\n' "$simulated" | sed -n 's/^Inst \([^ ]*\).*/\1/p')
# shellcheck disable=SC2086 # the lists are meant to be split
unpack_packages "$home.new" $(printf '%s\n' $wanted $missing | sort -u)
rm -rf "$home"
mv "$home.new" "$home"
