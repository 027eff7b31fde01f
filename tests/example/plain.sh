#!/bin/bash
# A device of a third party, with one kernel and references: the losses of cpu, alone and on a mesh.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" plain

sed -i 's/^steps = .*/steps = 3/; s/^n_layers = .*/n_layers = 2/' recipe.ini
train_to one
values loss one/metrics.jsonl >expected
for mesh in '' '-n 2 --with tp --set tp.degree=2'; do
    read -ra arguments <<<"$mesh"
    rm -rf many
    train_to many --without cpu --with plain "${arguments[@]}"
    values loss many/metrics.jsonl >losses
    near losses expected 1e-5
done
grep -q 'linear.* calls\|host memory, one thread\|slow reference' many.log || { cat many.log; exit 1; }
"$ctitan" plan recipe.ini --without cpu --with plain --program >plan
grep -q 'linear (loops)' plan
