#!/bin/bash
# Weights of tokens: with equal ones the loss is the cross entropy; with others it is one rank's on every mesh.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" token_weights

sed -i 's/text, bytes/token_weights/; /^\[text\]/,+1d' recipe.ini
if "$ctitan" train recipe.ini >log 2>&1; then exit 1; fi
grep -q 'set \[objective\] name = token_weights, or cross_entropy' log || { cat log; exit 1; }

train plain --set objective.name=cross_entropy
train equal --set objective.name=token_weights --set token_weights.uniform=true
close <(values equal loss) <(values plain loss)
close <(values equal grad_norm) <(values plain grad_norm)

printf '[objective]\nname = token_weights\n[validation]\nfreq = 3\nsteps = 2\n' >>recipe.ini
train one
values one loss >expected
values one validation_loss >validation
if cmp -s expected <(values plain loss); then echo 'weights have no effect'; exit 1; fi
grep -q '"validation_weight_sum": ' one/metrics.jsonl
for mesh in '-n 2 --with fsdp' '-n 2 --with tp --set tp.degree=2' '-n 2 --with cp --set cp.degree=2' \
    '-n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=1'; do
    read -ra arguments <<<"$mesh"
    rm -rf many
    train many "${arguments[@]}"
    close <(values many loss) expected
    [[ $mesh == *fsdp* ]] || close <(values many validation_loss) validation
    echo "$mesh: one rank's losses"
done
