#!/bin/sh
# The compiler, called by cargo for each crate. It shortens the paths in panic messages of dependencies, so that they do
# not contain the builder's home directory. An option in cargo's configuration cannot name a directory that differs between
# machines, and cargo's own trim-paths is not stable.
exec "$@" --remap-path-prefix="${CARGO_HOME:-$HOME/.cargo}/registry/src=deps"
