#!/bin/bash
# Regions whose forward is done again have the same losses and norms, bit for bit, in less memory, and only the
# collectives inside of a region are done again.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" recompute

memory() { sed -nE 's/^memory per rank: .*\(([0-9,]*) bytes\)/\1/p' "$1" | tr -d ,; }
# calls PLAN COLLECTIVE AXES: of a step.
calls() { awk -v op="$2" -v axes="$3" '$1 == op && $2 == axes { print $3 }' "$1"; }

for mesh in '' '-n 2 --with fsdp' '-n 4 --with fsdp --with tp --set tp.degree=2' \
    '-n 4 --with fsdp --with pp --set pp.degree=2 --set pp.schedule=zb1p --set pp.microbatch_size=2' \
    '--set training.local_batch_size=2' '--set training.mixed_precision_param=bfloat16' \
    '-n 2 --with fsdp --set training.mixed_precision_param=bfloat16'; do
    read -ra arguments <<<"$mesh"
    rm -rf whole again
    train_to whole "${arguments[@]}"
    train_to again "${arguments[@]}" --with recompute
    for value in loss grad_norm; do
        values $value whole/metrics.jsonl >expected
        values $value again/metrics.jsonl >found
        cmp expected found
    done
    "$ctitan" plan recipe.ini "${arguments[@]}" >whole.plan
    "$ctitan" plan recipe.ini "${arguments[@]}" --with recompute >again.plan
    (($(memory again.plan) < 8 * $(memory whole.plan) / 10)) || { cat whole.plan again.plan; exit 1; }
    echo "${mesh:-one rank}: $(memory again.plan) bytes, not $(memory whole.plan)"
done

# 4 layers in 2 microbatches: the sum of what attention gives, and nothing else.
mesh=(-n 4 --with fsdp --with tp --set tp.degree=2)
"$ctitan" plan recipe.ini "${mesh[@]}" >whole.plan
"$ctitan" plan recipe.ini "${mesh[@]}" --with recompute >again.plan
(($(calls again.plan reduce_scatter tp) == $(calls whole.plan reduce_scatter tp) + 8))
for collective in 'all_gather tp' 'all_gather dp_shard' 'reduce_scatter dp_shard'; do
    read -ra which <<<"$collective"
    (($(calls again.plan "${which[@]}") == $(calls whole.plan "${which[@]}")))
done
