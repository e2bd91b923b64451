# Sourced by scripts that test packages: a small Debian with its own systemd as PID 1, which applies the sandbox of each unit.
# Needs root, but no container manager: it uses namespaces, and a group of its own in the host's cgroup 2.
# shellcheck shell=sh
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

suite=bookworm
[ "$(id -u)" = 0 ] || fail "needs root, to start a Debian of its own"
folder=$(mktemp -d)
machine=$folder/tree
cgroup=$(findmnt -n -o TARGET -t cgroup2 | head -n 1)/dlock-machine-$$

unshare_pid=
trap shut_down EXIT

# The package mirror of the host.
# shellcheck disable=SC2016 # apt puts in the values, not the shell
mirror=$(apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    awk -v suite="$suite" '$1 == suite && $2 == "main" { print $3; exit }')
: "${mirror:=http://deb.debian.org/debian}"

# Runs a command in the folder TREE, which has a Debian that is not booted, on the host's network: in_tree TREE COMMAND...
in_tree() {
    tree=$1
    shift
    chroot "$tree" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
        DEBIAN_FRONTEND=noninteractive "$@"
}

# Makes a tar file of the smallest Debian with systemd and these packages: make_tree_tar PACKAGE... Sets $tree_tar to its
# path. A file that an earlier run made is used again.
make_tree_tar() {
    tree_tar=$top/build/machine/$suite-$(echo "$*" | md5sum | cut -c 1-8).tar
    [ ! -e "$tree_tar" ] || return 0
    say "making a Debian ($suite) with: $*"
    fetched=$folder/fetched
    new=$folder/new
    mkdir -p "${tree_tar%/*}"
    unpack_packages "$fetched" debootstrap
    DEBOOTSTRAP_DIR=$fetched/usr/share/debootstrap "$fetched/usr/sbin/debootstrap" --variant=minbase \
        --include=systemd,systemd-sysv "$suite" "$new" "$mirror" >"$folder/log" 2>&1 || { tail "$folder/log"; fail "debootstrap"; }
    # With this file, no package starts a service while it is installed.
    printf '#!/bin/sh\nexit 101\n' >"$new/usr/sbin/policy-rc.d"
    chmod +x "$new/usr/sbin/policy-rc.d"
    cp /etc/resolv.conf "$new/etc/resolv.conf"
    echo "deb $mirror $suite-backports main" >>"$new/etc/apt/sources.list"
    in_tree "$new" apt-get update -qq
    in_tree "$new" apt-get install -y -qq --no-install-recommends "$@" >"$folder/log" 2>&1 || { tail "$folder/log"; fail "apt-get install $*"; }
    rm "$new/usr/sbin/policy-rc.d"
    tar -C "$new" -cf "$tree_tar.new" .
    mv "$tree_tar.new" "$tree_tar"
    rm -rf --one-file-system "$new"
}

# Unpacks the machine's tree, with these packages: unpack_machine PACKAGE...
unpack_machine() {
    make_tree_tar "$@"
    mkdir -p "$machine"
    tar -C "$machine" -xf "$tree_tar"
}

# Starts systemd in the tree, in namespaces of its own. With SHARED_NETWORK, it uses the host's network.
boot() {
    cat >"$folder/boot" <<'SCRIPT'
set -eu
# pivot_root requires a mount point. The second cd enters the mount.
cd "$1"
mount --bind . .
cd "$1"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs tmpfs sys/fs/cgroup
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    : >"dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts dev/shm .old
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s /proc/self/fd dev/fd
ln -s pts/ptmx dev/ptmx
pivot_root . .old
cd /
umount -l /.old
rmdir /.old
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --show-status=no
SCRIPT
    # Every installed Debian has this line.
    echo "127.0.0.1 localhost" >"$machine/etc/hosts"
    mkdir "$cgroup"
    net=--net
    [ -z "${SHARED_NETWORK:-}" ] || net=
    # shellcheck disable=SC2016,SC2086 # the inner shell expands $$ and $@; an empty $net is no word
    sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' sh "$cgroup" unshare --fork --pid --mount --uts --ipc --cgroup \
        $net --kill-child sh "$folder/boot" "$machine" >"$folder/console" 2>&1 &
    unshare_pid=$!
    : >"$folder/state"
    # systemd reports "degraded" if it has started, but a unit has failed.
    until init=$(pgrep -P "$unshare_pid") && inside systemctl is-system-running >"$folder/state" 2>&1 ||
        grep -q degraded "$folder/state"; do
        kill -0 "$unshare_pid" 2>/dev/null || { cat "$folder/console"; fail "the machine did not start"; }
        sleep 0.2
    done
}

# Runs a command in the booted machine: inside COMMAND...
inside() {
    nsenter --target "$init" --pid --mount --uts --ipc --net --cgroup --root --wd /usr/bin/env -i \
        PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}

shut_down() {
    if [ -n "$unshare_pid" ]; then
        kill -KILL "$unshare_pid" || :
        wait "$unshare_pid" 2>/dev/null || :
        unshare_pid=
    fi
    # systemd leaves the control groups of its units behind, and the killed processes take a moment to end.
    for _ in $(seq 50); do
        [ -e "$cgroup" ] || break
        find "$cgroup" -depth -type d -exec rmdir {} \; 2>/dev/null || :
        sleep 0.1
    done
    rm -rf --one-file-system "$folder"
}

# Fails unless a value is the wanted one: expect WHAT WANTED GOT
expect() {
    [ "$2" = "$3" ] || fail "$1: wanted '$2', got '$3'"
    echo "   $1: $3"
}

# Repeats a command until it succeeds, for at most 30 s: await WHAT COMMAND...
await() {
    what=$1
    shift
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 150 ] || fail "no success within 30 s: $what"
        sleep 0.2
    done
}
