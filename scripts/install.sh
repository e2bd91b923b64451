#!/bin/sh
# Builds the module and the command, and installs them: PREFIX=/usr/local scripts/install.sh
#
# DESTDIR is put before every path, for packages.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

prefix=${DESTDIR:-}${PREFIX:-/usr/local}
built=${CARGO_TARGET_DIR:-$top/target}/release
# Under sudo, installs the user's build: root has no Rust, and would leave files of root in target/.
[ -n "${SUDO_USER:-}" ] || cargo build --release --locked -p dlock-module -p dlock
for file in libdlock.so dlock; do
    [ -e "$built/$file" ] || fail "$built/$file is missing: run \`make build\` first, without sudo"
done

install -D -m 755 "$built/dlock" "$prefix/bin/dlock"
# Redis does not load a module that is not executable.
install -D -m 755 "$built/libdlock.so" "$prefix/lib/redis/modules/libdlock.so"

share=$prefix/share
mkdir -p "$share/man/man1" "$share/bash-completion/completions" "$share/fish/vendor_completions.d" \
    "$share/zsh/site-functions"
"$built/dlock" completions bash >"$share/bash-completion/completions/dlock"
"$built/dlock" completions fish >"$share/fish/vendor_completions.d/dlock.fish"
"$built/dlock" completions zsh >"$share/zsh/site-functions/_dlock"
"$built/dlock" man >"$share/man/man1/dlock.1"
# The man page of the command lists the pages of its subcommands.
for page in $(sed -n 's/^dlock\\-\([a-z]*\)(1)$/\1/p' "$share/man/man1/dlock.1"); do
    "$built/dlock" man "$page" >"$share/man/man1/dlock-$page.1"
done
install -D -m 644 -t "$share/doc/dlock" README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT redis.conf.example
