#!/bin/bash
# A model of a third party, in plain ops, learns, and has one rank's losses on meshes of every technique.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" palm

sed -i 's/ llama,/ palm,/; s/^name = llama/name = palm/; s/^\[llama\]/[palm]/' recipe.ini
train_to one
values loss one/metrics.jsonl >expected
awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < first - 0.05) }' expected
for mesh in '-n 2 --with fsdp' '-n 2 --with tp --set tp.degree=2' '-n 2 --with cp --set cp.degree=2' \
    '-n 4 --with fsdp --with pp --set pp.degree=2 --set pp.microbatch_size=2'; do
    read -ra arguments <<<"$mesh"
    rm -rf many
    train_to many "${arguments[@]}"
    values loss many/metrics.jsonl >losses
    near losses expected 1e-5
    echo "$mesh: one rank's losses"
done

# An op type that is only a formula, from which its gradient is derived. Without kernels its reference runs; those that were written when
# palm was made, for each instruction set, run alone, or it is compiled with its neighbours; on every mesh, recomputed or not.
export XDG_CACHE_HOME=$work/cache
CTITAN_PLUGIN_PATH=$work/palm/objects/without train_to plain --set palm.activation=squared_relu --set training.steps=3
values loss plain/metrics.jsonl >expected
"$ctitan" plan recipe.ini --set palm.activation=squared_relu --program >plan
for op in palm.squared_relu palm.squared_relu_grad; do grep -qE " $op \((avx|portable)" plan || { grep " $op" plan; exit 1; }; done
CTITAN_CPU_ISA=portable "$ctitan" plan recipe.ini --set palm.activation=squared_relu --program >plan
grep -q ' palm.squared_relu_grad (portable)' plan
for mesh in '' '--with fuse' '-n 2 --with fsdp --with fuse' '-n 2 --with tp --set tp.degree=2 --with sac --set sac.mode=full' \
    '-n 4 --with cp --set cp.degree=2 --with pp --set pp.degree=2 --set pp.microbatch_size=2'; do
    read -ra arguments <<<"$mesh"
    rm -rf many
    train_to many --set palm.activation=squared_relu --set training.steps=3 "${arguments[@]}"
    [[ $mesh != *fuse* ]] || grep -q 'fuse: .* fused ops' many.log
    [[ $mesh != *fsdp* ]] || grep -q '(0 compiled' many.log || { echo "compiled again"; exit 1; }
    values loss many/metrics.jsonl >losses
    near losses expected 1e-5
    echo "$mesh: the losses of the references"
done

# It describes no config.json: what a folder of averages would lack is said before the first step.
fails 2 '\[ema\] save_to = saved: .*palm.*describes no config.json' train --with ema --set ema.save_to=saved --set job.dump_folder=refused
[[ ! -e refused/metrics.jsonl ]]
