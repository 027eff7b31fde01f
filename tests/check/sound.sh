#!/bin/bash
# sound.sh CTITAN FOLDER: `ctitan check` passes ops that are right; a file may be named without '/'.
# What cannot be tried without an option is said to be untried, which is no pass unless it is allowed.
set -uo pipefail
ctitan=$(realpath "$1")
cd "$2" || exit 1
export TMPDIR=$PWD/'odd #1'
mkdir -p "$TMPDIR"
"$ctitan" check sound.so | tee sound.log
test "${PIPESTATUS[0]}" = 0 && grep -q '^sound: 3 checks passed, 0 failed, 0 could not' sound.log || exit 1
for source in text tokens; do
    "$ctitan" check $source --quick | tee $source.log
    test "${PIPESTATUS[0]}" = 1 && grep -q "^untried .*--set $source.*KEY=VALUE\|^untried .*: set $source.path (.*): --set $source.path=VALUE" $source.log || exit 1
    "$ctitan" check $source --quick --allow-untried >/dev/null || exit 1
done
# A value in quotes is the same here as in a run.
head -c 8192 /dev/zero >"$TMPDIR/tokens"
"$ctitan" check tokens --quick --set "tokens.path=\"$TMPDIR/tokens\"" || exit 1
