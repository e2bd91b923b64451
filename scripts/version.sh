#!/bin/sh
# Writes the version of Cargo.toml (workspace.package) into the files that cannot read it there: version.sh
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

version=$(version)
sed -i "s/^version = \".*\"/version = \"$version\"/" clients/python/pyproject.toml
sed -i "s/^__version__ = \".*\"/__version__ = \"$version\"/" clients/python/src/dlock/__init__.py
sed -i "s/^  \"version\": \".*\"/  \"version\": \"$version\"/" clients/node/package.json
# The lock file has the version twice: at the top, and in the entry "", which is this package itself.
sed -i "1,10s/^\( *\"version\": \)\".*\"/\1\"$version\"/" clients/node/package-lock.json
sed -i "s|\(dlock/clients/go\) v.*|\1 v$version|" clients/go/dlockotel/go.mod
sed -i "s/image: dlock-valkey:.*/image: dlock-valkey:$version/" contrib/kubernetes/*.yaml
cargo update --workspace --offline --quiet
say "version $version; CHANGELOG.md is yours to write"
