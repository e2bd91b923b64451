#!/bin/sh
# The compiler, as cargo calls it for each crate. A panic's place in a dependency would tell the path of the builder's
# home: it tells the crate instead. (No option of cargo's configuration may name a folder that differs from one machine
# to the next, and its own trim-paths is not stable.)
exec "$@" --remap-path-prefix="${CARGO_HOME:-$HOME/.cargo}/registry/src=deps"
