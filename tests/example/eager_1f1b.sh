#!/bin/bash
# A schedule of a third party is proven over many numbers of ranks, and a run with it has one rank's losses.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" eager_1f1b

"$ctitan" check eager_1f1b/eager_1f1b.so | tee log
grep -q 'schedule eager_1f1b: [0-9]* cases verified' log

# Its option, and what is no option of it.
draw() { "$ctitan" schedule eager_1f1b --ranks 4 --microbatches 8 "$@"; }
draw >with_one
draw --set eager_1f1b.extra=0 >with_none
if cmp -s with_one with_none; then exit 1; fi
for wrong in 'eager_1f1b.extra=65:extra = 65: expected' 'eager_1f1b.extr=1:did you mean extra' 'gpipe.extra=1:schedule eager_1f1b is not of plugin gpipe' \
    'extra=1:expected PLUGIN.KEY=VALUE'; do
    if draw --set "${wrong%%:*}" 2>log; then exit 1; fi
    grep -F -- "--set ${wrong%%:*}" log | grep -F "${wrong#*:}"
done

train_to one
train_to many -n 4 --with pp --set pp.degree=4 --set pp.schedule=eager_1f1b --set pp.microbatch_size=1
values loss one/metrics.jsonl >expected
values loss many/metrics.jsonl >losses
near losses expected 1e-5
if "$ctitan" plan recipe.ini -n 4 --with pp --set pp.degree=4 --set pp.schedule=adamw 2>log; then exit 1; fi
grep 'plugin adamw offers no schedule' log
