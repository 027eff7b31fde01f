#!/bin/bash
# sound.sh CTITAN FOLDER: `ctitan check` passes ops that are right; a file may be named without '/'.
set -uo pipefail
ctitan=$(realpath "$1")
cd "$2" || exit 1
"$ctitan" check sound.so | tee sound.log
test "${PIPESTATUS[0]}" = 0 && grep -q '^sound: 3 checks passed, 0 failed, 0 could not' sound.log
