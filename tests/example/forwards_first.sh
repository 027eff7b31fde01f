#!/bin/bash
# An order of a third party: all forwards before the first backward, in more memory, with the same losses.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" forwards_first

train usual
train ordered --with forwards_first
values usual loss >expected
values ordered loss >losses
close losses expected
train many --with forwards_first -n 2 --with fsdp
values many loss >losses
close losses expected

# items ARGUMENT...: of the step, in order.
items() { "$ctitan" plan recipe.ini "$@" --program | awk '$2 ~ /^[FB][0-9]/ && $2 != last { printf "%s ", last = $2 }'; }
[[ $(items) == 'F0 B0 F1 B1 F2 B2 F3 B3 ' ]]
[[ $(items --with forwards_first) == 'F0 F1 F2 F3 B3 B2 B1 B0 ' ]]
memory() { "$ctitan" plan recipe.ini "$@" | sed -nE 's/^memory per rank: .*\(([0-9,]*) bytes\)/\1/p' | tr -d ,; }
(($(memory --with forwards_first) > $(memory)))
