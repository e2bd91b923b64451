# Sourced by the other scripts. Changes to the project's folder, and defines functions for messages, servers and
# installations.
# shellcheck shell=sh

top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top" || exit

say() { printf '== %s\n' "$*"; }

fail() {
    printf '!! %s\n' "$*" >&2
    exit 1
}

# Prints the path of the Redis server: REDIS_SERVER if it is set, else Debian's, else the link that setup.sh makes.
redis_server() {
    if [ -n "${REDIS_SERVER:-}" ]; then
        echo "$REDIS_SERVER"
    elif [ -x /usr/bin/redis-server ]; then
        echo /usr/bin/redis-server
    else
        echo "$top/build/servers/redis-7.0/server"
    fi
}

# Installs Debian's packages, as root: install_packages NAME...
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

# Installs the Python client in target/python, with its extras: python_client [EXTRA]. PYTHON: the interpreter,
# by default python3. REDIS_PY: what pip installs as redis-py, by default the newest.
python_client() {
    "${PYTHON:-python3}" -c 'import ensurepip' 2>/dev/null || install_packages python3-venv
    [ -x target/python/bin/python ] || "${PYTHON:-python3}" -m venv target/python
    target/python/bin/python -m pip install -q --disable-pip-version-check "${REDIS_PY:-redis}" -e "clients/python${1:+[$1]}"
}

# Installs the Node client with its test dependencies, and builds it. NODE_CLIENTS names other versions of the libraries
# ("ioredis@6 redis@4").
node_client() (
    # Node.js needs no check of its own, because Debian's package npm depends on it.
    command -v npm >/dev/null || install_packages nodejs npm
    cd clients/node
    npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
    # shellcheck disable=SC2086 # the list is meant to be split
    [ -z "${NODE_CLIENTS:-}" ] ||
        npm install --no-save --ignore-scripts --no-audit --no-fund --loglevel=error $NODE_CLIENTS
    npm run --silent build
)

# Exports DLOCK_TEST_SERVERS, unless it is set: Debian's Redis and the named servers. Fetches servers that are missing:
# prepare_test_servers NAME...
prepare_test_servers() {
    [ -z "${DLOCK_TEST_SERVERS:-}" ] || return 0
    DLOCK_TEST_SERVERS="redis-7.0=$(redis_server)"
    for name in "$@"; do
        scripts/fetch-server.sh "$name"
        DLOCK_TEST_SERVERS="$DLOCK_TEST_SERVERS,$name=$top/build/servers/$name/server"
    done
    export DLOCK_TEST_SERVERS
}

# Installs and builds both clients, and the other lock libraries that the tests of clients/fleet need.
install_test_clients() {
    unpack_test_databases
    say "the Python and the Node client"
    python_client test,recipes
    node_client
    npm install --silent --no-audit --no-fund --prefix target/node redlock@5.0.0-beta.2 ioredis@5
}

# Builds the tests of all languages, and exports what they read. Cargo's messages, which name the test programs, are in
# build/suites/programs.json. Everything is built before a test starts: no test runs beside a compiler.
build_tests() {
    mkdir -p build/suites
    say "installing the Python and the Node client, and building the workspace"
    # The installation mostly waits for downloads.
    install_test_clients >build/suites/clients.log 2>&1 &
    clients=$!
    # One build of the whole workspace, with the module and the command in the target folder. The second command builds
    # nothing: it names the programs. The bench has no tests: the lints compile it.
    built=
    {
        cargo build --workspace --exclude dlock-bench --all-targets &&
            cargo test --workspace --exclude dlock-bench --no-run --quiet --message-format json \
                >build/suites/programs.json
    } || built=no
    wait "$clients" || {
        cat build/suites/clients.log >&2
        fail "the clients were not installed"
    }
    [ -z "$built" ] || fail "the workspace was not built"
    export DLOCK_TEST_MODULE="${DLOCK_TEST_MODULE:-${CARGO_TARGET_DIR:-$top/target}/debug/libdlock.so}"
    # Most tests wait for servers most of the time.
    export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(($(nproc) * 3))}"
}

# Unpacks the databases for the tests of fences. Without apt-get there are none, and these tests are skipped.
unpack_test_databases() {
    if command -v apt-get >/dev/null; then
        scripts/fetch-databases.sh
    else
        say "no apt-get here: the tests of fences on PostgreSQL and MariaDB are SKIPPED"
    fi
}

# Runs the tests of the Python client. The arguments go to pytest. DLOCK_TEST_SERVERS and DLOCK_TEST_MODULE must be set.
python_tests() (
    export NODE_PATH="$top/target/node/node_modules" # for the tests of clients/fleet
    cd clients/python && "$top/target/python/bin/python" -m pytest -q "$@"
)

# Unpacks Debian's packages into a folder, without installing them: unpack_packages FOLDER NAME...
unpack_packages() {
    unpacked=$1
    shift
    say "fetching: $*" >&2
    rm -rf "$unpacked" && mkdir -p "$unpacked"
    # Started by root, apt would download as the user _apt, which may have no access to the folder.
    (cd "$unpacked" && apt-get download -qq -o APT::Sandbox::User=root "$@") || fail "apt-get download failed: $*"
    for package in "$unpacked"/*.deb; do dpkg -x "$package" "$unpacked"; done
    rm "$unpacked"/*.deb
}

# Installs nightly Rust with these components: nightly_with COMPONENT...
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

# Prints the version in Cargo.toml. All packages share it.
version() {
    sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml
}
