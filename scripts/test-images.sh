#!/bin/sh
# Builds the images of packaging/docker by the documented commands, and runs them like contrib/kubernetes does: the probes,
# a lock, a restart, the exporter. Works in a Debian of its own, with podman in place of docker. The base images are made
# from Debian's packages and this machine's Rust, under the names of those on Docker Hub.
set -eu
# shellcheck source=scripts/machine.sh
. "$(dirname "$0")/machine.sh"

# Builds a base image. Its Dockerfile, on standard input, begins FROM tree, the image made of the tar file TREE:
# base NAME TREE
base() {
    inside podman import --quiet - tree <"$2" >/dev/null
    inside BUILDAH_ISOLATION=chroot podman build --quiet --tag "docker.io/$1" --file - /srv/context >/dev/null
}

# Starts a container with the rights and the file system that the pods have: contained OPTION... IMAGE [COMMAND...]
contained() {
    inside docker run --quiet --detach --read-only --user 999:999 --cap-drop ALL --security-opt no-new-privileges "$@" \
        >/dev/null
}

# Sends a command to the server in the container "server", and prints the reply.
ask() { inside docker exec server "$family-cli" "$@"; }

# Prints the exporter's answer to GET PATH: get PATH
get() {
    # shellcheck disable=SC2016 # the bash in the container expands $0
    inside docker exec exporter bash -c 'exec 3<>/dev/tcp/127.0.0.1/9736 && printf "GET $0 HTTP/1.0\r\n\r\n" >&3 && cat <&3' "$1"
}

try() {
    family=$1
    # shellcheck disable=SC2046 # the list is meant to be split
    set -- $(sed -n 's/.*exec: {command: \[\(.*\)\]}/\1/p' contrib/kubernetes/quorum.yaml | sort -u |
        sed "s/,//g; s/valkey-cli/$family-cli/")
    [ $# = 5 ] || fail "the probes of contrib/kubernetes are not one command: $*"
    say "$family: the probe is $*"
    contained --name server --network none --volume "$family:/data" "dlock-$family"
    await "the server" inside docker exec server "$@"
    expect "the health check of the image" 0 "$(inside podman healthcheck run server && echo 0)"
    expect "the server's program and user id" "$family-server 999" "$(inside docker exec server sh -c 'cat /proc/1/comm; stat -c %u /proc/1' | xargs)"
    expect "the first lock, in the grace period of a start" GRACE "$(ask DLOCK.ACQUIRE r t 60000 | cut -c 1-5)"
    ask CONFIG SET dlock.restart-grace 0 >/dev/null
    fence=$(ask DLOCK.ACQUIRE r t 60000)
    [ "$fence" -gt 0 ] || fail "no lock: $fence"
    expect "the output of a command under a lock" held "$(inside docker exec server dlock run -s redis://127.0.0.1 r2 -- echo held)"
    inside docker rm --force server >/dev/null
    contained --name server --network none --volume "$family:/data" "dlock-$family"
    await "the server" inside docker exec server "$@"
    expect "the hold in another container, with its fence" "$fence" "$(ask DLOCK.ACQUIRE r t 60000)"

    contained --name exporter --network container:server --env DLOCK_SERVERS=redis://127.0.0.1 "dlock-$family" \
        dlock exporter --listen 0.0.0.0:9736
    await "the exporter" get /
    expect "the exporter's probe" "HTTP/1.0 200 OK" "$(get / | head -n 1 | tr -d '\r')"
    expect "its metrics: up" 1 "$(get /metrics | sed -n 's/^dlock_up{.*} //p')"
    inside docker stop exporter >/dev/null
    expect "the exporter ends by SIGTERM" 143 "$(inside docker inspect --format '{{.State.ExitCode}}' exporter)"
    inside docker rm exporter >/dev/null
    inside docker rm --force server >/dev/null

    # The image without the module, on which the tested image is based.
    server_image=$(sed -n 's/^FROM \([^ ]*\)$/\1/p' "packaging/docker/$family.Dockerfile")
    contained --name server --network none "$server_image" "$family-server"
    await "the server" ask PING
    inside docker exec server "$@" >/dev/null && fail "the probe succeeds without the module"
    echo "   without the module the probe fails"
    inside docker rm --force server >/dev/null
}

make_tree_tar redis-server && redis=$tree_tar
make_tree_tar valkey-server && valkey=$tree_tar
make_tree_tar ca-certificates gcc libc6-dev && rust=$tree_tar
unpack_machine podman podman-docker crun
# The host may forbid control groups and raised limits. So podman uses no control groups, and does not raise the limit on files.
cat >>"$machine/etc/containers/containers.conf" <<END
[containers]
cgroups = "disabled"
default_ulimits = ["nofile=1024:$(ulimit -Hn)", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
END
echo 'unqualified-search-registries = ["docker.io"]' >"$machine/etc/containers/registries.conf"
touch "$machine/etc/containers/nodocker"
git clone --quiet . "$machine/srv/dlock"
SHARED_NETWORK=yes
boot

say "the base images"
context=$machine/srv/context
mkdir -p "$context/rust"
tar -C "$(rustc --print sysroot)" --exclude=./share -cf - . | tar -C "$context/rust" -xf -
# The certificates that this machine trusts for crates.io.
cp "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$context/ca-certificates.crt"
base library/rust:1-bookworm "$rust" <<'END'
FROM tree
COPY rust /usr/local
COPY ca-certificates.crt /etc/ssl/certs/
END
rm -r "$context"/*
base library/redis:8.0-bookworm "$redis" <<'END'
FROM tree
RUN mkdir /data && chown 999:999 /data
WORKDIR /data
VOLUME /data
END
base valkey/valkey:8.0-bookworm "$valkey" <<'END'
FROM tree
RUN mkdir /data && chown 999:999 /data
WORKDIR /data
VOLUME /data
END

grep -ho 'docker build .*' docs/install.md packaging/docker/*.Dockerfile | sort -u >"$folder/builds"
[ "$(wc -l <"$folder/builds")" = 2 ] || fail "not the commands of two images: $(cat "$folder/builds")"
while read -r build; do
    say "$build"
    inside BUILDAH_ISOLATION=chroot BUILDAH_FORMAT=docker sh -c "cd /srv/dlock && $build" </dev/null
done <"$folder/builds"
try redis
try valkey
say "all is well"
