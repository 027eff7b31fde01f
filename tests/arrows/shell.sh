#!/bin/bash
# shell.sh SOURCE: shellcheck finds nothing in the scripts of the tree. Skipped where there is none.
set -uo pipefail
cd "$1" || exit
command -v shellcheck >/dev/null || { echo "shellcheck is not installed"; exit 77; }
mapfile -t scripts < <(grep -rlIE --exclude-dir={.git,'build*'} -m 1 '^#!.*\b(ba|da)?sh\b' . | sort)
shellcheck -S warning -f gcc "${scripts[@]}"
