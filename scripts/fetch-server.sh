#!/bin/sh
# Unpacks a server of another Debian release into build/servers/NAME, without installing it: fetch-server.sh NAME
#
# The packages come from the machine's Debian mirror, with all their dependencies, including the C library.
# build/servers/NAME/server starts the server through the loader of that library, so servers of a newer Debian run here.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

name=$1
home=$top/build/servers/$name
if [ -x "$home/server" ]; then
    exit 0
fi

# `program` is a tool that checks RDB files. It is also the program of the server: see the link `server` below.
# NAME has the version that the suite had when this line was written. The script prints the version that it fetches.
case $name in
    valkey-8.0) suites="bookworm bookworm-backports" package=valkey-tools program=valkey-check-rdb ;;
    redis-8) suites=trixie package=redis-tools program=redis-check-rdb ;;
    valkey-9) suites=sid package=valkey-tools program=valkey-check-rdb ;;
    *) fail "no such server: $name" ;;
esac

command -v apt-get >/dev/null || fail "$name comes from Debian's packages, but there is no apt-get"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e $keyring ] || fail "$keyring is missing, so Debian's signatures cannot be checked: install debian-archive-keyring"

# Asks apt for the mirror, because the sources may be configured in several ways.
# shellcheck disable=SC1091
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
# shellcheck disable=SC2016 # apt puts in the values, not the shell
mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    awk -v release="$codename" '$1 == release && $2 == "main" { print $3; exit }')
[ -n "$mirror" ] || fail "apt has no source for Debian's main packages (release: $codename)"

# A separate apt, with its own sources and lists and no installed packages, so that it fetches every dependency. It
# checks signatures as usual.
work=$top/build/fetch/$name
rm -rf "$work"
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/tree"
: >"$work/status"
for suite in $suites; do
    echo "deb [signed-by=$keyring] $mirror $suite main"
done >"$work/sources.list"
own_apt() {
    apt-get -qq \
        -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
        -o Dir::State="$work" -o Dir::State::Lists="$work/lists" -o Dir::State::Status="$work/status" \
        -o Dir::Cache="$work" -o Dir::Cache::Archives="$work/archives" \
        -o APT::Sandbox::User=root -o APT::Install-Recommends=false -o APT::Update::Error-Mode=any \
        -o Acquire::Languages=none -o Acquire::Retries=5 "$@"
}

say "fetching $name from Debian's ${suites##* }"
own_apt update || fail "$name: the package lists of '$suites' could not be fetched from $mirror"
# apt installs from backports only if -t names them. -t names the last suite.
own_apt install --yes --download-only -t "${suites##* }" "$package" >"$work/log" 2>&1 ||
    {
        cat "$work/log" >&2
        fail "$name: $package could not be fetched from '$suites'"
    }
for file in "$work"/archives/*.deb; do
    dpkg -x "$file" "$work/tree"
done

# The tool that checks RDB files is the program of the server, which acts by the name under which it is started. So a
# link named `server` starts the server.
[ -e "$work/tree/usr/bin/$program" ] || fail "$name: $package does not contain $program"
ln -s "$program" "$work/tree/usr/bin/server"
loader=$(cd "$work" && find tree -name 'ld-linux*.so.*' ! -type l -print -quit)
[ -n "$loader" ] || fail "$name: no C library among the packages"
# shellcheck disable=SC2016 # $here is for the script below
libraries=$(
    cd "$work" || exit
    find tree/lib tree/usr/lib -maxdepth 1 -name '*-linux-gnu' -printf '$here/%p:' 2>/dev/null || :
)
cat >"$work/server" <<SCRIPT
#!/bin/sh
here=\${0%/*}
exec "\$here/$loader" --library-path "${libraries%:}" "\$here/tree/usr/bin/server" "\$@"
SCRIPT
chmod +x "$work/server"
version=$("$work/server" --version) || fail "$name: the server does not run here"

# All or nothing: an interrupted run leaves no partial server.
rm -rf "$home"
mkdir -p "$home"
mv "$work/tree" "$home/tree"
mv "$work/server" "$home/server"
rm -rf "$top/build/fetch"
say "$name is $(printf '%s' "$version" | sed -n 's/.* v=\([^ ]*\).*/\1/p')"
