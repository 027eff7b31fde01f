#!/bin/bash
# shell.sh SOURCE: shellcheck finds nothing in the scripts of the tree, and each verdict is of a command. Skipped where there is none.
set -uo pipefail
cd "$1" || exit
command -v shellcheck >/dev/null || { echo "shellcheck is not installed"; exit 77; }
mapfile -t scripts < <(grep -rlIE --exclude-dir={.git,'build*'} -m 1 '^#!.*\b(ba|da)?sh\b' . | sort)
shellcheck -S warning -f gcc "${scripts[@]}"
status=$?
# In the arguments of tell, the status of a $(..) would take the place of the command's: such a test cannot fail.
! grep -rnE '(^|[;&|] *)tell .*\$\([^(]' tests || status=1
# In a program of set -e, `! COMMAND` ends nothing: `never COMMAND` does, and so does `! COMMAND || fail`.
mapfile -t strict < <(grep -lE '^set -[a-z]*e' "${scripts[@]}")
! grep -HnE '^ *! ' "${strict[@]}" | grep -vE '\|\||&&' || status=1
exit $status
