#!/bin/sh
# Lists comment lines of more than 110 columns in Rust files, and fails if it finds one: columns.sh [FILE...]. rustfmt
# does not wrap comments.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

[ $# -gt 0 ] || set -- src crates tests fuzz
# In UTF-8, a character counts as one column.
if LC_ALL=C.UTF-8 grep -rnP --include='*.rs' --exclude-dir=target '^(?=.{111})\s*//' "$@"; then
    fail "wrap the comments above at 110 columns"
fi
