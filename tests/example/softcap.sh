#!/bin/bash
# An op of a third party: a wrong gradient and a wrong kernel are found; a graph may have it.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" softcap

harmed() {
    local change=$1 words=$2
    rm -rf harmed
    cp -r softcap harmed
    sed -i "$change" harmed/softcap.c
    touch harmed/softcap.c
    make -s -C harmed CC="${CC:-cc}" CFLAGS='-std=gnu11 -O2 -w -fvisibility=hidden -fPIC'
    if "$ctitan" check --quick harmed/softcap.so >log 2>&1; then cat log; exit 1; fi
    grep -q "$words" log || { cat log; exit 1; }
}
harmed 's/share \* share)/share)/' 'op softcap.*gradient of input 0'
harmed 's/bound \* tanhf/0.99f * bound * tanhf/' 'kernel float32 of softcap on cpu'

# A model caps its logits.
cp -r "$source/examples/palm" palm
sed -i 's/    ct_graph_fetch(graph, "logits", \(ct_linear(.*)\));/    x = \1;\n    ct_graph_fetch(graph, "logits", ct_emit1(\&m.b, "softcap", NULL, \&x, 1, NULL));/' palm/palm.c
grep -q softcap palm/palm.c
make -s -C palm CC="${CC:-cc}"
export CTITAN_PLUGIN_PATH+=:$work/palm
sed -i 's/^load = .*/&, softcap/' recipe.ini
model=(--without llama --with palm --set model.name=palm --set palm.dim=32 --set palm.n_layers=2 --set palm.n_heads=2
    --set palm.vocab_size=320)
train_to one "${model[@]}"
train_to many "${model[@]}" -n 4 --with fsdp --with tp --set tp.degree=2
values loss one/metrics.jsonl >expected
values loss many/metrics.jsonl >losses
near losses expected 1e-5
"$ctitan" plan recipe.ini "${model[@]}" --program >plan
grep -q 'softcap (float32)' plan

# The same cap as a rounding that gradients pass through, computed in float32, whatever the forward's dtype.
cp -r palm through
sed -i 's/ct_graph_fetch(graph, "logits", ct_emit1(.*/struct ct_value *y = ct_cast(\&m.b, NULL, x, CT_F32);\n    y = ct_cast_like(\&m.b, NULL, ct_emit1(\&m.b, "softcap", NULL, \&y, 1, NULL), x);\n    ct_graph_fetch(graph, "logits", ct_straight_through(\&m.b, NULL, x, y));/' through/palm.c
grep -q straight_through through/palm.c
touch through/palm.c
make -s -C through CC="${CC:-cc}"
for dtype in bfloat16 float32; do
    CTITAN_PLUGIN_PATH=$work/softcap:$work/through train_to "$dtype" "${model[@]}" --set training.mixed_precision_param=$dtype
    CTITAN_PLUGIN_PATH=$work/softcap:$work/through "$ctitan" plan recipe.ini "${model[@]}" --set training.mixed_precision_param=$dtype --program >plan
    if grep -q 'softcap_grad (\| cast_like (' plan; then cat plan; exit 1; fi
    grep -q 'softcap (float32)' plan
done
values loss float32/metrics.jsonl >losses
awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < first - 0.05) }' losses

# It has no kernel for CUDA: a GPU that is only described is planned for, by the op's bytes.
words='no kernel of cuda for softcap: its time is taken from bytes and FLOPs'
for verb in plan simulate; do
    "$ctitan" $verb recipe.ini "${model[@]}" --device h100-80g >out 2>log || { cat log; exit 1; }
    [[ $(grep -c "$words" log) == 1 ]] || { cat log; exit 1; }
done
"$ctitan" simulate recipe.ini "${model[@]}" --device h100-80g --json 2>log | tr -d ' \n' >out
grep -q '"no_kernel":\["softcap","softcap_grad"\]' out
"$ctitan" tune recipe.ini "${model[@]}" --world 1 --device h100-80g >out 2>log || { cat log; exit 1; }
grep -q "^$words" out || { cat out; exit 1; }
if "$ctitan" train recipe.ini "${model[@]}" --without cpu --with cuda --set cuda.describe=h100-80g >log 2>&1; then cat log; exit 1; fi
grep -q 'this device is only described' log || { cat log; exit 1; }
# A slower plan that has all kernels is better than one whose time is a guess: with three layers, the model has no cap.
sed -i 's/"logits", ct_emit1/"logits", model->n_layers == 3 ? x : ct_emit1/' palm/palm.c
grep -q 'n_layers == 3' palm/palm.c
make -s -C palm CC="${CC:-cc}"
"$ctitan" tune recipe.ini "${model[@]}" --world 1 --device h100-80g --vary palm.n_layers=2,3 --vary training.local_batch_size=1 >out 2>log || { cat log; exit 1; }
mapfile -t plans < <(grep 'tok/s' out)
[[ ${plans[0]} == *palm.n_layers=3* && ${plans[1]} == *'palm.n_layers=2'*'LACKS KERNELS' && ${plans[0]} != *LACKS* ]] || { cat out; exit 1; }
