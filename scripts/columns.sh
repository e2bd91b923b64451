#!/bin/sh
# Lists comment lines in Rust files of more than 110 columns, which rustfmt does not wrap: scripts/columns.sh [FILE...]
# Fails if there are any.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

[ $# -gt 0 ] || set -- src crates tests fuzz
# In UTF-8, so that a character counts as one column.
if LC_ALL=C.UTF-8 grep -rnP --include='*.rs' --exclude-dir=target '^(?=.{111})\s*//' "$@"; then
    fail "wrap the comments above at 110 columns"
fi
