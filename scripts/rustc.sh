#!/bin/sh
# The compiler, as cargo calls it for each crate. Panic messages of dependencies then name the crate, and not the home
# directory of whoever built it. (An option in cargo's configuration cannot name a directory that differs between machines,
# and cargo's own trim-paths is not stable.)
exec "$@" --remap-path-prefix="${CARGO_HOME:-$HOME/.cargo}/registry/src=deps"
