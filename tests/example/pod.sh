#!/bin/bash
# An axis that ctitan does not know has its place in the mesh, and a mesh with it has one rank's losses.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" pod

train_to one
values loss one/metrics.jsonl >expected
for mesh in '-n 2 --with pod --set pod.degree=2' '-n 4 --with pod --set pod.degree=2 --with fsdp' \
    '-n 4 --with pod --set pod.degree=2 --with tp --set tp.degree=2'; do
    read -ra arguments <<<"$mesh"
    rm -rf many
    train_to many "${arguments[@]}"
    values loss many/metrics.jsonl >losses
    near losses expected 1e-5
    echo "$mesh: one rank's losses"
done
"$ctitan" plan recipe.ini -n 2 --with pod --set pod.degree=2 >log
grep -q 'all_reduce  *pod ' log
"$ctitan" plan recipe.ini -n 4 --with pod --set pod.degree=2 --with fsdp >log
grep -q 'all_gather  *pod.dp_shard ' log

# An axis that splits sequences without multiplying them must find enough of them in a microbatch.
sed -i 's/\.splits_batch = true/.splits_batch = false/' pod/pod.c
make -s -C pod CC="${CC:-cc} -Werror"
split=(train recipe.ini -n 4 --with pod --set pod.degree=2 --with pp --set pp.degree=2 --set job.dump_folder=split)
status=0
"$ctitan" "${split[@]}" >log 2>&1 || status=$?
[ "$status" = 2 ] && grep -q 'the sequences of a microbatch, 1, are split over more ranks' log || { cat log; exit 1; }
"$ctitan" "${split[@]}" --set pp.microbatch_size=2 >log 2>&1 || { cat log; exit 1; }
