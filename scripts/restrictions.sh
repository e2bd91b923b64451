#!/bin/sh
# Checks the rules of ARCHITECTURE.md that no compiler checks: which code only some files may contain, and which files may
# import each other. Part of `make lint`.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

wrong=0

# Searches each FOLDER for code that matches PATTERN: only WHAT WHERE PATTERN FOLDER... If any is outside WHERE, prints
# it, with WHAT as its description, and sets `wrong`.
only() {
    what=$1 where=$2 pattern=$3
    shift 3
    if grep -rnE --include='*.rs' "$pattern" "$@" | grep -vE "^($where)|^[^:]*:[0-9]*: *//"; then
        echo "$what: only in $where" >&2
        wrong=1
    fi
}

say "restrictions of ARCHITECTURE.md"
only "unsafe code" "src/ffi/" '\bunsafe\b' src crates/*/src
only "the module API" "src/ffi/" '\bredis_module\b|\brm::' src
only "writing, replicating, announcing" "src/effects.rs|src/ffi/" \
    '\.(replicate\w*|notify|signal_modified)\(|open_for_write' src
only "reading clocks" "src/clock.rs" 'SystemTime\b|Instant::now|clock_gettime|\.elapsed\(' \
    src crates/core/src crates/quorum/src
only "names of commands as string literals" "crates/protocol/" '"DLOCK\.[A-Z_]+"' \
    src crates/core/src crates/quorum/src crates/client/src crates/cli/src
only "using the global value MODULE" "src/upcalls.rs" '\bMODULE\b\.|\bMainThread\b|Module::get\(' src/*.rs src/commands
python3 scripts/imports.py || wrong=1
exit "$wrong"
