#!/bin/sh
# Cargo calls this script in place of the compiler, for each crate. The script shortens the paths in panic messages of
# dependencies, so that they do not contain the builder's home directory. An option in cargo's configuration cannot name
# a directory that differs between machines, and cargo's own trim-paths is not stable.
exec "$@" --remap-path-prefix="${CARGO_HOME:-$HOME/.cargo}/registry/src=deps"
