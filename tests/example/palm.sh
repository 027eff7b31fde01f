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

# An op type without a kernel, only a formula, from which its gradient is derived: its reference runs, or it is compiled with its
# neighbours; on every mesh, recomputed or not.
export XDG_CACHE_HOME=$work/cache
train_to plain --set palm.activation=squared_relu --set training.steps=3
values loss plain/metrics.jsonl >expected
for mesh in '--with fuse' '-n 2 --with fsdp --with fuse' '-n 2 --with tp --set tp.degree=2 --with sac --set sac.mode=full' \
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
