#!/bin/sh
# Tries the packages of `make dist` in two small Debians, one with Redis and one with Valkey. Each server runs under the
# systemd unit of its Debian package. The steps: install, lock, CONFIG REWRITE, upgrade while a lock is held, rewrite the
# data files without the module's data, remove. OLD_MODULE names the libdlock.so of an older build to upgrade from.
# Without OLD_MODULE, the old package has the new module with a lower version.
set -eu
# shellcheck source=scripts/machine.sh
. "$(dirname "$0")/machine.sh"

dist=${CARGO_TARGET_DIR:-$top/target}/dist
[ -e "$dist/SHA256SUMS" ] || scripts/dist.sh
(cd "$dist" && sha256sum --quiet --check SHA256SUMS)
module=$(echo "$dist"/dlock-module_*.deb)
command=$(echo "$dist"/dlock_*.deb)

# Sends a command to the server under test and prints the reply.
ask() { inside "$family-cli" "$@"; }

# Runs a command in the machine. Prints all its output if it fails, else only the lines that begin with dlock.
quietly() {
    inside "$@" >"$folder/log" 2>&1 || {
        cat "$folder/log" >&2
        fail "$*"
    }
    grep '^dlock' "$folder/log" || :
}

restart() {
    inside systemctl restart "$family-server" || {
        inside tail -n 5 "/var/log/$family/$family-server.log" >&2
        fail "$family-server does not start"
    }
    await "the server" ask PING
}

modules() { ask MODULE LIST | tr '\n' ' ' | sed -n 's/.*\(dlock\) ver \([0-9]*\).*/\1 \2/p'; }

try() {
    family=$1
    say "$family: install, with apt, beside the server that runs"
    boot
    await "the server" ask PING
    find "$machine/etc" "$machine/usr" "$machine/lib/systemd" ! -type d | sort >"$folder/before"
    mkdir "$folder/old"
    dpkg-deb -R "$module" "$folder/old"
    sed -i 's/^Version: .*/Version: 0.0.9/' "$folder/old/DEBIAN/control"
    [ -z "${OLD_MODULE:-}" ] || cp "$OLD_MODULE" "$folder/old/usr/lib/redis/modules/libdlock.so"
    dpkg-deb -b "$folder/old" "$folder/dlock-module_0.0.9.deb" >/dev/null
    cp "$folder/dlock-module_0.0.9.deb" "$module" "$command" "$machine/srv/"
    quietly apt-get install -y -qq "/srv/dlock-module_0.0.9.deb" "/srv/${command##*/}"
    expect "no module before a restart" "" "$(modules)"

    say "$family: the module runs in the unit's own sandbox"
    restart
    expect "the loaded module, and the first digit of its version" "dlock 1" "$(modules | cut -c 1-7)"
    pid=$(inside systemctl show -P MainPID "$family-server")
    # shellcheck disable=SC2016 # awk expands it
    expect "seccomp, no new privileges, no capabilities" "2 1 0000000000000000" "$(inside awk \
        '/^Seccomp:/ { s = $2 } /^NoNewPrivs/ { n = $2 } /^CapBnd/ { c = $2 } END { print s, n, c }' "/proc/$pid/status")"
    expect "the fence mark is written" ok "$(ask INFO dlock | sed -n 's/^dlock_fence_mark_status:\([a-z]*\).*/\1/p')"
    expect "a lock is held by a command" held "$(inside dlock run -s redis://127.0.0.1 packaged -- echo held)"
    inside dlock status -s redis://127.0.0.1 >"$folder/status" && code=0 || code=$?
    expect "the exit code of dlock status in spite of a warning" 0 "$code"
    grep -q notify-keyspace-events "$folder/status" || fail "no warning that notify-keyspace-events is not set"
    for file in man/man1/dlock-run.1.gz bash-completion/completions/dlock; do
        [ -s "$machine/usr/share/$file" ] || fail "no $file"
    done

    say "$family: the exporter's unit"
    inside systemd-analyze verify /usr/lib/systemd/system/dlock-exporter.service
    quietly systemctl enable --now dlock-exporter
    # shellcheck disable=SC2016 # the inner bash reads this text
    await "the metrics" inside bash -c 'exec 3<>/dev/tcp/127.0.0.1/9736 && printf "GET /metrics HTTP/1.0\r\n\r\n" >&3 &&
        grep -q "^dlock_up.* 1$" <&3'
    quietly systemctl disable --now dlock-exporter

    try_timer

    say "$family: upgrade while a lock is held"
    fence=$(ask DLOCK.ACQUIRE upgraded holder 3600000)
    expect "no lock for another token" "" "$(ask DLOCK.ACQUIRE upgraded other 1000)"
    # CONFIG REWRITE adds a second loadmodule line, with which the server would not start. Before each start, the
    # package's addition to the server's unit removes the line.
    expect "CONFIG REWRITE" OK "$(ask CONFIG REWRITE)"
    quietly apt-get install -y -qq "/srv/${module##*/}"
    restart
    expect "the hold has survived, with its fence" "$fence" "$(ask DLOCK.ACQUIRE upgraded holder 3600000)"
    expect "and no other token gets it" "" "$(ask DLOCK.ACQUIRE upgraded other 1000)"
    expect "one release ends it" 1 "$(ask DLOCK.RELEASE upgraded holder)"

    say "$family: rewrite the data files without the module's data, and remove everything"
    ask SET kept value >/dev/null
    ask CONFIG SET appendonly yes aof-use-rdb-preamble no >/dev/null
    await "the append only file" rewritten
    ask BGREWRITEAOF >/dev/null
    await "the append only file" rewritten
    ask CONFIG REWRITE >/dev/null
    quietly apt-get purge -y -qq dlock dlock-module
    restart
    expect "no module" "" "$(modules)"
    expect "the other data" value "$(ask GET kept)"
    find "$machine/etc" "$machine/usr" "$machine/lib/systemd" ! -type d | sort >"$folder/after"
    diff "$folder/before" "$folder/after" || fail "purging the packages left files behind, or removed files of others"
    ! grep -E 'dlock' "$machine/etc/$family/$family.conf" || fail "left in $family.conf"
    expect "the file that is left in the server's folder" "dlock-6379.fence" "$(cd "$machine/var/lib/$family" && ls -d dlock*)"
    # Removes the folder, so the next machine needs another one.
    shut_down
    folder=$(mktemp -d)
    machine=$folder/tree
}

# Tries contrib/systemd/nightly.*, the units of a job for one of several hosts. Here, the timer starts the job every
# second. The job makes its report, then sleeps for 60 s under the lock.
try_timer() {
    say "$family: the timer of the examples"
    units="/etc/systemd/system/nightly.service /etc/systemd/system/nightly.timer"
    cp -t "$machine/etc/systemd/system" "$machine"/usr/share/doc/dlock/examples/systemd/nightly.*
    # shellcheck disable=SC2086 # the list is meant to be split
    inside systemd-analyze verify $units
    # shellcheck disable=SC2016 # the written script expands it
    printf '#!/bin/sh\necho "$DLOCK_RESOURCE" >>/srv/reports\n' >"$machine/usr/local/bin/nightly-report"
    chmod +x "$machine/usr/local/bin/nightly-report"
    mkdir "$machine/etc/systemd/system/nightly.timer.d"
    printf '[Timer]\nOnCalendar=\nOnCalendar=*:*:*\n' >"$machine/etc/systemd/system/nightly.timer.d/often.conf"
    quietly systemctl daemon-reload
    quietly systemctl enable --now nightly.timer
    await "the report" test -s "$machine/srv/reports"
    expect "the lock is held while the job sleeps" "" "$(ask DLOCK.ACQUIRE nightly other 60000)"
    quietly systemctl disable --now nightly.timer
    quietly systemctl stop nightly.service
    [ "$(ask DLOCK.ACQUIRE nightly other 60000)" -gt 0 ] || fail "the stopped job still holds its lock"
    # On a host that finds the lock taken, the unit does not fail.
    quietly systemctl start nightly.service
    expect "the report was made once, under the lock" "nightly" "$(cat "$machine/srv/reports")"
    expect "the other host releases the lock" 1 "$(ask DLOCK.RELEASE nightly other)"
    # shellcheck disable=SC2086 # the list is meant to be split
    inside rm -r $units /etc/systemd/system/nightly.timer.d /usr/local/bin/nightly-report
    quietly systemctl daemon-reload
}

rewritten() {
    ask INFO persistence | tr -d '\r' >"$folder/info"
    grep -qx aof_rewrite_in_progress:0 "$folder/info" && grep -qx aof_rewrite_scheduled:0 "$folder/info" &&
        grep -qx aof_last_bgrewrite_status:ok "$folder/info"
}

unpack_machine redis-server
try redis
unpack_machine valkey-server
try valkey
say "all is well"
