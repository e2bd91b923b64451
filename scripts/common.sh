# Sourced by the other scripts: the project's folder, messages, where servers are. Does nothing by itself.
# shellcheck shell=sh

top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top" || exit

say() { printf '== %s\n' "$*"; }

fail() {
    printf '!! %s\n' "$*" >&2
    exit 1
}

# REDIS_SERVER if set, else the distribution's Redis. Without the service package only the tools are installed, and setup
# links the server to one of them (see setup.sh).
redis_server() {
    if [ -n "${REDIS_SERVER:-}" ]; then
        echo "$REDIS_SERVER"
    elif [ -x /usr/bin/redis-server ]; then
        echo /usr/bin/redis-server
    else
        echo "$top/build/servers/redis-7.0/server"
    fi
}

# Debian's packages, as root: install_packages NAME...
install_packages() {
    say "installing: $*"
    mkdir -p build
    as_root=
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || fail "not root and no sudo; as root run: apt-get install $*"
        as_root=sudo
    fi
    command -v apt-get >/dev/null || fail "no apt-get here; install what Debian calls $*"
    $as_root apt-get update -qq -o Acquire::Retries=3 || fail "apt-get update failed"
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 \
        --no-install-recommends "$@" >build/setup.log 2>&1 ||
        {
            cat build/setup.log >&2
            fail "apt-get install failed: $*"
        }
}

# Nightly Rust with these components: nightly_with COMPONENT...
nightly_with() {
    if ! cargo +nightly --version >/dev/null 2>&1; then
        say "fetching the nightly toolchain"
        rustup toolchain install nightly --profile minimal
    fi
    for component in "$@"; do
        if ! rustup component list --toolchain nightly --installed | grep -q "^$component"; then
            say "fetching $component for nightly"
            rustup component add --toolchain nightly "$component"
        fi
    done
}
