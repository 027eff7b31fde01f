#!/bin/bash
# Linear layers on 8-bit numbers: every mesh has one rank's scales and so its losses; fsdp gathers bytes.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" scaled_linear

train_to plain
train_to one --with scaled_linear
values loss one/metrics.jsonl >expected
# Rounding shows, and harms little.
values loss plain/metrics.jsonl >losses
never cmp -s losses expected
paste losses expected | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 2e-3) exit 1 }'
never grep -q 'slow reference' one.log

for mesh in '-n 2 --with fsdp' '-n 4 --with fsdp --with tp --set tp.degree=2' \
    '-n 4 --with fsdp --with pp --set pp.degree=2 --set pp.microbatch_size=2' '--set training.local_batch_size=2'; do
    read -ra arguments <<<"$mesh"
    rm -rf many
    train_to many --with scaled_linear "${arguments[@]}"
    values loss many/metrics.jsonl >losses
    near losses expected 1e-5
    echo "$mesh: one rank's losses"
done

# gathered DTYPE ARGUMENT...: bytes that a rank sends for gathers in a step.
gathered() {
    local dtype=$1
    shift
    "$ctitan" plan recipe.ini -n 2 --with fsdp --set llama.dim=128 --set llama.vocab_size=258 \
        --set "training.mixed_precision_param=$dtype" "$@" >plan
    awk '$1 == "all_gather" && $2 == "dp_shard" { gsub(",", "", $NF); print $NF }' plan
}
for share in 'float32 28' 'bfloat16 52'; do
    read -r dtype percent <<<"$share"
    whole=$(gathered "$dtype")
    eighth=$(gathered "$dtype" --with scaled_linear)
    echo "$dtype: $eighth bytes gathered, not $whole"
    ((100 * eighth < percent * whole))
done
"$ctitan" explain recipe.ini -n 2 --with fsdp --with scaled_linear >graph
grep -q '%model.layers.0.mlp.up_proj.weight.largest = .* : float32\[\] max{dp_shard}' graph
grep -q 'all_reduce(%model.layers.0.mlp.up_proj.weight.largest) {axes="dp_shard", reduction="max"}' graph
grep -q 'all_gather(.*%model.layers.0.mlp.up_proj.weight.q, .*float8_e4m3' graph

# The kernels compute what the references do.
sed -i 's/{CT_KERNELS, "cpu", kernels},//' scaled_linear/scaled_linear.c
make -s -C scaled_linear CC="${CC:-cc}" CFLAGS='-std=gnu11 -O2 -w -fvisibility=hidden -fPIC'
train_to reference --with scaled_linear --set training.steps=2
grep -q 'calls of scaled_linear_dw run its slow reference' reference.log
head -n 2 expected >first
values loss reference/metrics.jsonl >losses
near losses first 1e-5
