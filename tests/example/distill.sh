#!/bin/bash
# Distillation: from the likeliest token alone it is the cross entropy; from several it is one rank's loss on every mesh, and falls.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" distill

sed -i 's/text, bytes/distill/; /^\[text\]/,+1d' recipe.ini
train_to plain --set objective.name=cross_entropy
train_to first --set objective.name=distill --set distill.k=1
near <(values loss first/metrics.jsonl) <(values loss plain/metrics.jsonl) 1e-5
near <(values grad_norm first/metrics.jsonl) <(values grad_norm plain/metrics.jsonl) 1e-5

printf '[objective]\nname = distill\n' >>recipe.ini
train_to one
values loss one/metrics.jsonl >expected
awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < first - 0.05) }' expected
for mesh in '-n 2 --with fsdp' '-n 2 --with tp --set tp.degree=2' '-n 2 --with cp --set cp.degree=2' \
    '-n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=1'; do
    read -ra arguments <<<"$mesh"
    rm -rf many
    train_to many "${arguments[@]}"
    near <(values loss many/metrics.jsonl) expected 1e-5
    echo "$mesh: one rank's losses"
done
