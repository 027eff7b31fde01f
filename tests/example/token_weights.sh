#!/bin/bash
# Weights of tokens: with equal ones the loss is the cross entropy; with others it is one rank's on every mesh.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" token_weights

sed -i 's/text, bytes/token_weights/; /^\[text\]/,+1d' recipe.ini
if "$ctitan" train recipe.ini >log 2>&1; then exit 1; fi
grep -q 'set \[objective\] name = token_weights, or cross_entropy' log || { cat log; exit 1; }

train_to plain --set objective.name=cross_entropy
train_to equal --set objective.name=token_weights --set token_weights.uniform=true
near <(values loss equal/metrics.jsonl) <(values loss plain/metrics.jsonl) 1e-5
near <(values grad_norm equal/metrics.jsonl) <(values grad_norm plain/metrics.jsonl) 1e-5

printf '[objective]\nname = token_weights\n[validation]\nfreq = 3\nsteps = 2\n' >>recipe.ini
train_to one
values loss one/metrics.jsonl >expected
values validation_loss one/metrics.jsonl >validation
if cmp -s expected <(values loss plain/metrics.jsonl); then echo 'weights have no effect'; exit 1; fi
grep -q '"validation_weight_sum": ' one/metrics.jsonl
for mesh in '-n 2 --with fsdp' '-n 2 --with tp --set tp.degree=2' '-n 2 --with cp --set cp.degree=2' \
    '-n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=1'; do
    read -ra arguments <<<"$mesh"
    rm -rf many
    train_to many "${arguments[@]}"
    near <(values loss many/metrics.jsonl) expected 1e-5
    [[ $mesh == *fsdp* ]] || near <(values validation_loss many/metrics.jsonl) validation 1e-5
    echo "$mesh: one rank's losses"
done
