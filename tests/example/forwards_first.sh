#!/bin/bash
# An order of a third party: all forwards before the first backward, in more memory, with the same losses.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" forwards_first

train_to usual
train_to ordered --with forwards_first
values loss usual/metrics.jsonl >expected
values loss ordered/metrics.jsonl >losses
near losses expected 1e-5
train_to many --with forwards_first -n 2 --with fsdp
values loss many/metrics.jsonl >losses
near losses expected 1e-5

# items ARGUMENT...: of the step, in order.
items() { "$ctitan" plan recipe.ini "$@" --program | awk '$2 ~ /^[FB][0-9]/ && $2 != last { printf "%s ", last = $2 }'; }
[[ $(items) == 'F0 B0 F1 B1 F2 B2 F3 B3 ' ]]
[[ $(items --with forwards_first) == 'F0 F1 F2 F3 B3 B2 B1 B0 ' ]]
memory() { "$ctitan" plan recipe.ini "$@" | sed -nE 's/^memory per rank: .*\(([0-9,]*) bytes\)/\1/p' | tr -d ,; }
(($(memory --with forwards_first) > $(memory)))
