#!/bin/bash
# Common subexpressions of a model are computed once: fewer ops, the same losses.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" cse

# A model that has an op twice in each of its two layers.
cp -r "$source/examples/palm" palm
sed -i 's/h = norm(m, x, name);/h = norm(m, x, name); h = ct_add(\&m->b, NULL, ct_silu(\&m->b, NULL, h), ct_silu(\&m->b, NULL, h));/' palm/palm.c
make -s -C palm CC="${CC:-cc}"
export CTITAN_PLUGIN_PATH+=:$work/palm
model=(--without llama --with palm --set model.name=palm --set palm.dim=32 --set palm.n_layers=2 --set palm.n_heads=2
    --set palm.vocab_size=320)

train_to twice "${model[@]}"
train_to once "${model[@]}" --with cse
grep -q 'cse: 2 ops of palm are replaced by equal ones' once.log || { cat once.log; exit 1; }
values loss twice/metrics.jsonl >expected
values loss once/metrics.jsonl >losses
near losses expected 1e-5
count() { "$ctitan" plan recipe.ini "${model[@]}" "$@" --program 2>/dev/null | grep -c ' F0 .* silu ('; }
(($(count) == 4 && $(count --with cse) == 2))
train_to many "${model[@]}" --with cse -n 2 --with fsdp
values loss many/metrics.jsonl >losses
near losses expected 1e-5
