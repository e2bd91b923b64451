#!/bin/sh
# Makes the files of a release in target/dist: a tarball of `make install`, two Debian packages, the Python client, an
# SBOM, and checksums. The same sources and compiler make the same bytes, because all times in them are that of the last
# commit.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

command -v dpkg-deb >/dev/null || fail "dpkg-deb is missing"
python3 -m pip --version >/dev/null 2>&1 || fail "pip is missing: install python3-pip"
command -v objdump >/dev/null || fail "objdump is missing: install binutils"
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
version=$(version)
arch=$(dpkg --print-architecture)
dist=${CARGO_TARGET_DIR:-$top/target}/dist
work=$dist/work
name=dlock-$version-linux-$(uname -m)
umask 022
rm -rf "$dist"
mkdir -p "$work"

# Gives all files of TREE the time of the last commit: set_times TREE
set_times() {
    find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

# Prints the version of the C library that FILE requires: required_glibc FILE
required_glibc() {
    objdump -T "$1" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -uV | tail -n 1
}

# Makes a Debian package of the tree $work/NAME: deb NAME FILE. The package depends on the version of the C library that
# FILE requires.
deb() {
    tree=$work/$1
    mkdir -p "$tree/DEBIAN" "$tree/usr/share/doc/$1"
    # In a copyright file of Debian, each line of a license begins with a blank, and an empty line is a dot.
    sed -e 's/^$/./' -e 's/^/ /' LICENSE-MIT | cat packaging/debian/copyright - >"$tree/usr/share/doc/$1/copyright"
    sed -e "s/@VERSION@/$version/" -e "s/@ARCH@/$arch/" -e "s/@GLIBC@/$(required_glibc "$tree/$2")/" \
        "packaging/debian/$1/control" >"$tree/DEBIAN/control"
    for script in postinst prerm postrm; do
        [ ! -e "packaging/debian/$1/$script" ] || install -m 755 "packaging/debian/$1/$script" "$tree/DEBIAN/"
    done
    [ ! -d "$tree/etc" ] || (cd "$tree" && find etc -type f | sort | sed 's|^|/|') >"$tree/DEBIAN/conffiles"
    (cd "$tree" && find usr -type f | sort | xargs md5sum) >"$tree/DEBIAN/md5sums"
    set_times "$tree"
    dpkg-deb --root-owner-group -Zxz --build "$tree" "$dist/$1_${version}_$arch.deb" >/dev/null
}

say "dlock $version for $arch"
DESTDIR=$work/$name PREFIX=/ scripts/install.sh
# Exported only after the build. Otherwise cargo would rebuild the crates with C code for each commit, because the value
# changes with each commit.
export SOURCE_DATE_EPOCH
mkdir -p "$work/$name/share/dlock"
cp -R contrib "$work/$name/share/dlock/"
cp docs/install.md docs/monitoring.md "$work/$name/share/doc/dlock/"
set_times "$work/$name"
tar --create --sort=name --owner=0 --group=0 --numeric-owner --directory="$work" "$name" | gzip -9n >"$dist/$name.tar.gz"

# The command with its manual pages, and without the module.
mkdir "$work/dlock"
cp -R "$work/$name" "$work/dlock/usr"
rm -r "$work/dlock/usr/lib"
mv "$work/dlock/usr/share/zsh/site-functions" "$work/dlock/usr/share/zsh/vendor-completions"
mv "$work/dlock/usr/share/dlock/contrib" "$work/dlock/usr/share/doc/dlock/examples"
rm -r "$work/dlock/usr/share/dlock" "$work/dlock/usr/share/doc/dlock"/LICENSE-*
install -D -m 644 -t "$work/dlock/usr/lib/systemd/system" contrib/systemd/dlock-exporter.service
gzip -9n "$work"/dlock/usr/share/man/man1/*
deb dlock usr/bin/dlock

module=$work/dlock-module
packaging=packaging/debian/dlock-module
install -D -m 755 -t "$module/usr/lib/redis/modules" "$work/$name/lib/redis/modules/libdlock.so"
install -D -m 644 -t "$module/usr/share/doc/dlock-module" redis.conf.example docs/install.md
install -D -m 644 -t "$module/etc/dlock" $packaging/server.conf
for server in redis-server valkey-server; do
    install -D -m 644 $packaging/$server.conf "$module/usr/lib/systemd/system/$server.service.d/dlock.conf"
done
deb dlock-module usr/lib/redis/modules/libdlock.so

python3 -m pip wheel --quiet --no-deps --wheel-dir "$dist" ./clients/python
rm -rf clients/python/build

scripts/sbom.py "$version" >"$dist/dlock-$version.cdx.json"
rm -rf "$work"
(cd "$dist" && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
